"""Softmax of stored values: among the entries of one group, in the pattern of the input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.semantics.stored.entries import Stored
from maskgrad.semantics.stored.groups import Groups
from maskgrad.semantics.stored.reductions import grouped

__all__ = ["RULES"]


def _prepared(input: Stored, dim: int, dtype: torch.dtype | None) -> tuple[Stored, Groups, Tensor, bool]:
    if dtype is not None:
        input = Stored(input.values.to(dtype), input.pattern)
    axis = dim % len(input.shape)
    if axis >= len(input.pattern.sizes):  # within a dense dimension every vector is complete
        return input, None, input.entries, True  # type: ignore[return-value]
    groups, entries, _ = grouped(input, dim)
    return input, groups, entries, False


def softmax(input: Stored, dim: int, dtype: torch.dtype | None = None) -> Stored:
    """``exp(x) / sum(exp(x))`` over the entries of ``dim``."""
    input, groups, entries, dense = _prepared(input, dim, dtype)
    if dense:
        result = torch.softmax(entries, dim % len(input.shape) - len(input.pattern.sizes) + 1)
    else:
        powers = (entries - groups.extremum(entries, True)[groups.index]).exp()
        result = (powers / groups.sum(powers)[groups.index]).to(entries.dtype)
    return Stored(input.pattern.gathered(result), input.pattern)


def log_softmax(input: Stored, dim: int, dtype: torch.dtype | None = None) -> Stored:
    """``x - log(sum(exp(x)))`` over the entries of ``dim``."""
    input, groups, entries, dense = _prepared(input, dim, dtype)
    if dense:
        result = torch.log_softmax(entries, dim % len(input.shape) - len(input.pattern.sizes) + 1)
    else:
        shifted = entries - groups.extremum(entries, True)[groups.index]
        result = (shifted - groups.sum(shifted.exp()).log()[groups.index]).to(entries.dtype)
    return Stored(input.pattern.gathered(result), input.pattern)


def softmin(input: Stored, dim: int, dtype: torch.dtype | None = None) -> Stored:
    """The softmax of the negated entries."""
    return softmax(Stored(-input.values, input.pattern), dim, dtype)


def _for_both_signatures(rule: Any) -> Any:
    def body(input: Stored, dim: int, *rest: Any, dtype: Any = None, _stacklevel: int = 3) -> Stored:
        for extra in rest:  # F.softmax(x, dim, _stacklevel, dtype)
            dtype = extra if isinstance(extra, torch.dtype) else dtype
        return rule(input, dim, dtype)  # type: ignore[no-any-return]

    return body


RULES = {
    "softmax": _for_both_signatures(softmax),
    "log_softmax": _for_both_signatures(log_softmax),
    "nn.functional.softmin": _for_both_signatures(softmin),
}
