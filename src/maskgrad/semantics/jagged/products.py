"""Sums of products: with a plain matrix on rows, else on the padded form, of which the rows are kept."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.invariant import in_blocks
from maskgrad.patterns.jagged import JaggedPattern, same_lengths
from maskgrad.semantics.contractions import factors_of, meeting_of
from maskgrad.semantics.jagged.rows import Call, from_padded, is_jagged, trailing
from maskgrad.semantics.products import Equation, einsum_call, written_out
from maskgrad.semantics.stored.entries import StoredEntries, shape_of

__all__ = ["RULES"]

#: The ranks required by the special cases of matmul.
RANKS = {"mm": (2, 2), "bmm": (3, 3), "mv": (2, 1)}


def matmul(call: Call) -> Any:
    """``matmul`` and its special cases by rank."""
    left, right, options = factors_of(call.args, call.kwargs)
    shapes = shape_of(left), shape_of(right)
    ranks, name = tuple(map(len, shapes)), call.operation.name
    batches_differ = name == "bmm" and shapes[0][:1] != shapes[1][:1]
    if ranks != RANKS.get(name, ranks) or 0 in ranks or batches_differ:
        return None
    if options or call.function is operator.imatmul:
        return None
    if isinstance(right, Tensor) and ranks[1] <= 2 and trailing(left, 1) and left.shape[-1]:
        return StoredEntries(in_blocks(torch.matmul, left.values, right), left.pattern)
    return contracted(call, meeting_of(*ranks), [left, right])


def einsum(call: Call) -> Any:
    """``einsum`` in all its forms."""
    args, kwargs = call.args, call.kwargs
    text, factors = einsum_call((kwargs["equation"], *args) if "equation" in kwargs else args)
    try:
        return contracted(call, written_out(text, [len(shape_of(factor)) for factor in factors]), factors)
    except ValueError:
        return None


def contracted(call: Call, meeting: Equation, factors: list[Any]) -> Any:
    """The result of the padded form, and its rows.

    None if a position of the result is not one of the rows: these are summed, or separated.
    """
    first = next(i for i, factor in enumerate(factors) if is_jagged(factor))
    pattern: JaggedPattern = factors[first].pattern
    frame = [meeting.terms[first][place] for place in pattern.at]
    terms = [(factor, list(term)) for factor, term in zip(factors, meeting.terms, strict=True)]
    sizes = {c: n for factor, term in terms for c, n in zip(term, shape_of(factor), strict=True)}
    summed = [c for c in sizes if c not in meeting.result]
    if any(c in frame or not sizes[c] for c in summed) or not all(
        _fits(*own, frame, pattern) for own in terms
    ):
        return None
    moved = pattern.moved(tuple([meeting.result.index(c) for c in frame]))
    return from_padded(call.on_padded().values, moved)


def _fits(factor: Any, term: list[str], frame: list[str], pattern: JaggedPattern) -> bool:
    """Return whether a factor is plain, or has the rows of the pattern."""
    if not is_jagged(factor):
        return isinstance(factor, Tensor)
    if len(set(term)) < len(term):
        return False
    return [term[place] for place in factor.pattern.at] == frame and same_lengths(pattern, factor.pattern)


def addmm(call: Call) -> Any:
    """``torch.addmm`` of flattened rows with a plain matrix, and a bias that is the same for all."""
    given = call.bound("input mat1 mat2")
    added, x, other = (given.pop(name) for name in ("input", "mat1", "mat2"))
    plain = isinstance(added, Tensor) and isinstance(other, Tensor) and set(given) <= {"beta", "alpha"}
    if not plain or not trailing(x, 1) or (added.ndim == 2 and added.shape[0] != 1) or len(call.args) > 3:
        return None
    return StoredEntries(torch.addmm(added, x.values, other, **given), x.pattern)


RULES: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv"), matmul),
    "einsum": einsum,
    "addmm": addmm,
}
