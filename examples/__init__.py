"""Whole programs that use maskgrad; a folder each, to be copied: ``python -m examples.movielens``."""
