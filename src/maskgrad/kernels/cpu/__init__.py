"""Shared by the CPU implementations: Numba's compiler, loops over rows, columns and entries, memory, threads.

Importing a module of this package imports Numba, so they are imported by the first call that needs them.
"""
