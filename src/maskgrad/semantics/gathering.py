"""Reading by position: each position read brings its mask along.

Positions may be masked themselves: an unspecified position reads nothing, and its result is unspecified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedOperationError
from maskgrad.semantics.entries import Entries, Operand, values_of
from maskgrad.semantics.facts import of_rule, record

if TYPE_CHECKING:
    from collections.abc import Callable


PATTERN = "that of the entries read, where the position is specified"
MOVES = "moves back to the entries read"


def safe_positions(index: Any) -> tuple[Tensor, Tensor | None]:
    """The positions, 0 where they are unspecified (whatever number lies there), and their mask if they have one."""
    if isinstance(index, Entries):
        return torch.where(index.mask, index.values, 0), index.mask
    return index, None


def _read(x: Any, index: Any, read: Callable[[Tensor, Tensor], Tensor]) -> Entries:
    positions, known = safe_positions(index)
    if not isinstance(x, Entries):
        values = read(x, positions)
        assert known is not None  # one of the two is masked
        return Entries(values, known.expand(values.shape))
    values, mask = read(x.values, positions), read(x.mask, positions)
    return Entries(values, mask if known is None else mask & known)


def gather(input: Operand, dim: int, index: Operand, *, sparse_grad: bool = False) -> Entries:
    """``gather`` along a dimension, one position for each entry of the result."""
    return _read(input, index, lambda x, at: torch.gather(x, dim, at, sparse_grad=sparse_grad))


def take(input: Operand, index: Operand) -> Entries:
    """``take`` from the flattened tensor."""
    return _read(input, index, torch.take)


def take_along_dim(input: Operand, indices: Operand, dim: int | None = None) -> Entries:
    """``take_along_dim``: gather with broadcasting, or take from the flattened tensor."""
    index = indices
    if isinstance(index, Entries) and dim is not None:
        # broadcast the mask of the positions like the positions
        shape = values_of(input).shape
        sizes = list(torch.broadcast_shapes(*(_without(s, dim) for s in (shape, index.mask.shape))))
        sizes.insert(dim % len(shape), index.mask.shape[dim])
        index = Entries(index.values.expand(sizes), index.mask.expand(sizes))
    return _read(input, index, lambda x, positions: torch.take_along_dim(x, positions, dim))


def _without(shape: torch.Size, dim: int) -> list[int]:
    sizes = list(shape)
    del sizes[dim]
    return sizes


def masked_select(input: Entries, mask: Operand) -> Entries:
    """Entries where a plain Boolean tensor is True, in row-major order, with their masks."""
    x, chosen = input, mask
    if isinstance(chosen, Entries):
        raise UnsupportedOperationError(
            "torch.masked_select",
            "mask must be a plain tensor: whether its unspecified entries select is not known",
        )
    # of one shape, because torch.compile believes that no more is selected than the first operand has entries
    values, known, chosen = torch.broadcast_tensors(x.values, x.mask, chosen)
    return Entries(torch.masked_select(values, chosen), torch.masked_select(known, chosen))


def nonzero(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Positions of the specified entries that differ from zero: plain tensors, for there is nothing to miss in them."""
    (x, *rest) = args if args else (kwargs["input"],)
    named = {k: v for k, v in kwargs.items() if k != "input"}
    return function((x.values != 0) & x.mask, *rest, **named)


OPERATIONS = (
    *(of_rule(rule, "indexing", PATTERN, MOVES) for rule in (gather, take, take_along_dim)),
    of_rule(masked_select, "indexing", "that of the entries read", MOVES),
    *(
        record(name, "indexing", nonzero, "plain: the positions of specified entries")
        for name in ("nonzero", "nonzero_static", "argwhere")
    ),
)
