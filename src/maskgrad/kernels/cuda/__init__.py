"""What the bodies for CUDA devices share: Triton's compiler, tiles, lines and runs.

Importing a module of this package imports Triton, so nothing imports one before the first call that runs there.
"""
