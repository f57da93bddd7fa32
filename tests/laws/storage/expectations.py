"""What an operation is given, and what is independently known of its result: the mask and the layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tests.laws.storage.layouts import Storage

__all__ = [
    "Operation", "World", "anywhere", "both", "coo", "has_sizes", "keeps", "like_intersection", "meets", "of_rank",
    "same", "strided", "typical",
]  # fmt: skip


class World(NamedTuple):
    """What an operation is given: MaskedTensors and plain tensors, or their masks.

    Attributes:
        x: the operand in question.
        same: another one with the pattern of x.
        other: one with another pattern.
        dense: a plain tensor of the shape of x.
        row: a plain tensor of the shape of the last dimension.
        right: a plain matrix with as many rows as x has columns, masked in part in ``partner``.
        partner: the same with a Boolean mask.
    """

    x: Any
    same: Any
    other: Any
    dense: Any
    row: Any
    right: Any
    partner: Any


def anywhere(storage: Storage) -> bool:
    return True


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        name: for test ids.
        run: from a world to a result, or several.
        mask: from a world of masks to the mask of the result, or of each of several.
        layout: from a storage and the rank of the result to the result's layout.
        fits: on which storages it is defined.
        low: the least of the entries it is tried on.
        order: how many derivatives are compared.
        nothing: for what gives a number, a plain one: which, where its mask is False.
    """

    name: str
    run: Callable[[World], Any]
    mask: Callable[[World], Any]
    layout: Callable[[Storage, int], torch.layout]
    fits: Callable[[Storage], bool] = anywhere
    low: float = -2.0
    order: int = 2
    nothing: float | None = None


def same(storage: Storage, rank: int) -> torch.layout:
    return storage.layout


def coo(storage: Storage, rank: int) -> torch.layout:
    return torch.sparse_coo


def like_intersection(storage: Storage, rank: int) -> torch.layout:
    """The pattern of x stands if the other tensor has all of its places."""
    return torch.sparse_coo if (storage.mask & ~storage.other().mask).any() else storage.layout


def strided(storage: Storage, rank: int) -> torch.layout:
    return torch.strided


def of_rank(*ranks: int) -> Callable[[Storage], bool]:
    return lambda storage: len(storage.shape) in ranks


def keeps(name: str, run: Callable[[World], Any], fits: Any = anywhere, **more: Any) -> Operation:
    """The pattern of x, on its layout."""
    return Operation(name, run, lambda w: w.x, same, fits, **more)


def meets(name: str, run: Callable[[World], Any], fits: Any = anywhere, **more: Any) -> Operation:
    """Where both x and another pattern are specified."""
    return Operation(name, run, both, like_intersection, fits, **more)


def has_sizes(storage: Storage) -> bool:
    return min(storage.shape) > 0


def both(w: World) -> Any:
    return w.x & w.other


#: Operations that differ in the formula for an entry only are tried on these.
TYPICAL = (
    "jagged-hybrid", "jagged-empty", "jagged-turned", "coo-1d", "coo-hybrid", "coo-empty", "csr",
    "csr-single", "csc-batched", "bsr-2x3",
)  # fmt: skip


def typical(storage: Storage) -> bool:
    return storage.name in TYPICAL
