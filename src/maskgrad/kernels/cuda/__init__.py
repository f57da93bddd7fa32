"""Shared by the CUDA implementations: Triton's compiler, tiles, lines and runs.

Importing a module of this package imports Triton, so they are imported by the first call that needs them.
"""
