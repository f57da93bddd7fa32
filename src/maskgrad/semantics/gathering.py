"""Reading by position: each position read brings its mask along.

Positions may be masked themselves: an unspecified position reads nothing, and its result is unspecified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedOperationError
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import record
from maskgrad.semantics.signatures import bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskgrad.semantics.facts import Operation

__all__ = ["OPERATIONS", "safe_positions"]

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


def gather(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``gather`` along a dimension, one position for each entry of the result."""
    arguments = bound("input dim index sparse_grad", args, kwargs)
    dim, sparse = arguments["dim"], arguments.get("sparse_grad", False)

    def read(x: Tensor, index: Tensor) -> Tensor:
        return torch.gather(x, dim, index, sparse_grad=sparse)

    return _read(arguments["input"], arguments["index"], read)


def take(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``take`` from the flattened tensor."""
    arguments = bound("input index", args, kwargs)
    return _read(arguments["input"], arguments["index"], torch.take)


def take_along_dim(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``take_along_dim``: gather with broadcasting, or take from the flattened tensor."""
    arguments = bound("input indices dim", args, kwargs)
    dim = arguments.get("dim")
    index = arguments["indices"]
    if isinstance(index, Entries) and dim is not None:
        # broadcast the mask of the positions like the positions
        shape = (
            arguments["input"].values if isinstance(arguments["input"], Entries) else arguments["input"]
        ).shape
        sizes = list(torch.broadcast_shapes(*(_without(s, dim) for s in (shape, index.mask.shape))))
        sizes.insert(dim % len(shape), index.mask.shape[dim])
        index = Entries(index.values.expand(sizes), index.mask.expand(sizes))
    return _read(arguments["input"], index, lambda x, positions: torch.take_along_dim(x, positions, dim))


def _without(shape: torch.Size, dim: int) -> list[int]:
    sizes = list(shape)
    del sizes[dim]
    return sizes


def masked_select(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """Entries where a plain Boolean tensor is True, in row-major order, with their masks."""
    arguments = bound("input mask", args, kwargs)
    x, chosen = arguments["input"], arguments["mask"]
    if isinstance(chosen, Entries):
        raise UnsupportedOperationError(
            "torch.masked_select",
            "mask must be a plain tensor: whether its unspecified entries select is not known",
        )
    # of one shape, because torch.compile believes that no more is selected than the first operand has entries
    values, mask, chosen = torch.broadcast_tensors(x.values, x.mask, chosen)
    return Entries(torch.masked_select(values, chosen), torch.masked_select(mask, chosen))


def nonzero(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Positions of the specified entries that differ from zero: plain tensors, for there is nothing to miss in them."""
    (x, *rest) = args if args else (kwargs["input"],)
    named = {k: v for k, v in kwargs.items() if k != "input"}
    return function((x.values != 0) & x.mask, *rest, **named)


OPERATIONS: tuple[Operation, ...] = (
    *(record(body.__name__, "indexing", body, PATTERN, MOVES) for body in (gather, take, take_along_dim)),
    record("masked_select", "indexing", masked_select, "that of the entries read", MOVES),
    *(
        record(name, "indexing", nonzero, "plain: the positions of specified entries")
        for name in ("nonzero", "nonzero_static", "argwhere")
    ),
)
