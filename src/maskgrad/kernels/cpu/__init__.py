"""What the bodies for CPUs share: Numba's compiler, loops over rows, columns and entries, memory, threads.

Importing a module of this package imports Numba, so nothing imports one before the first call that runs there.
"""
