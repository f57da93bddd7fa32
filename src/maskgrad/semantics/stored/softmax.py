"""Softmax of stored values: among the entries of one group, in the pattern of the input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.signatures import named
from maskgrad.semantics.stored.entries import Stored
from maskgrad.semantics.stored.groups import Groups, group_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RULES"]


def _probabilities(entries: Tensor, groups: Groups) -> Tensor:
    return groups.softmax(entries, logarithm=False)


def _logarithms(entries: Tensor, groups: Groups) -> Tensor:
    return groups.softmax(entries, logarithm=True)


def _along(
    among_groups: Callable[[Tensor, Groups], Tensor], complete: Callable[[Tensor, int], Tensor]
) -> Callable[..., Stored]:
    """A rule from the formula for groups, and torch's own function for dense dimensions."""

    def body(input: Stored, dim: int, *rest: Any, dtype: Any = None, _stacklevel: int = 3) -> Stored:
        for extra in rest:  # F.softmax(x, dim, _stacklevel, dtype)
            dtype = extra if isinstance(extra, torch.dtype) else dtype
        axis, sparse = as_dim(dim, len(input.shape)), len(input.sizes)
        entries = input.entries if dtype is None else input.entries.to(dtype)
        if not entries.is_floating_point():
            complete(entries, 0)  # torch says why not
        if axis >= sparse:  # every vector is complete
            result = complete(entries, axis - sparse + 1)
        else:
            wide = entries.float() if entries.dtype in (torch.float16, torch.bfloat16) else entries
            groups = group_of(input.pattern, (axis,))
            result = among_groups(wide, groups).to(entries.dtype)
        return Stored(input.pattern.gathered(result), input.pattern)

    return body


softmax = _along(_probabilities, torch.softmax)
log_softmax = _along(_logarithms, torch.log_softmax)


def softmin(input: Stored, dim: int, *rest: Any, dtype: Any = None, _stacklevel: int = 3) -> Stored:
    """The softmax of the negated entries."""
    return softmax(Stored(-input.values, input.pattern), dim, *rest, dtype=dtype)


RULES: dict[str, Callable[..., Any]] = {
    "softmax": named(softmax),
    "log_softmax": named(log_softmax),
    "nn.functional.softmin": named(softmin),
}
