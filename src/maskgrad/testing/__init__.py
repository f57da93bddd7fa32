"""Assertions for tests of programs with masks; each runs an experiment of the doctor."""

from maskgrad.testing.invariance import (
    assert_accumulation_invariant,
    assert_causal,
    assert_documents_apart,
    assert_garbage_invariant,
    assert_padding_invariant,
    assert_ranks_invariant,
)

__all__ = [
    "assert_accumulation_invariant", "assert_causal", "assert_documents_apart", "assert_garbage_invariant",
    "assert_padding_invariant", "assert_ranks_invariant",
]  # fmt: skip
