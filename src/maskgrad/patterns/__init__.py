"""Patterns: which entries are specified, one file per way of storing that knowledge."""

from maskgrad.patterns.boolean import BooleanPattern

__all__ = ["BooleanPattern"]
