"""Patterns: the specified entries of a tensor, one file per storage."""

from maskgrad.patterns.boolean import BooleanPattern
from maskgrad.patterns.compressed import CompressedPattern
from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.patterns.pattern import Pattern, PatternFacts
from maskgrad.patterns.stored import CoordinatePattern, StoredPattern

__all__ = [
    "BooleanPattern", "CompressedPattern", "CoordinatePattern", "JaggedPattern", "Pattern", "PatternFacts",
    "StoredPattern",
]  # fmt: skip
