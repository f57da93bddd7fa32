"""Meaning of operations on partially specified values."""
