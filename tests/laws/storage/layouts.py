"""The patterns on which every operation is tried, each on its own layout and with a Boolean mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns.conversion import pattern_of_places
from maskgrad.patterns.jagged import JaggedPattern

__all__ = ["BY_NAME", "STORAGES", "Storage", "boolean", "entries_of", "filled", "stored"]

COO, CSR, CSC, JAGGED = torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.jagged
BSR, BSC = torch.sparse_bsr, torch.sparse_bsc
GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e38)


@dataclass(frozen=True)
class Storage:
    """A pattern of the sparse dimensions, and how it is stored.

    Attributes:
        name: for test ids.
        mask: Boolean, over the sparse dimensions; of a jagged layout, over batch and ragged dimension.
        layout: one of torch's sparse layouts, or torch.jagged.
        dense: sizes of the dense dimensions; of a jagged layout, of the features.
        blocksize: for the two blocked layouts.
        at: where the dimensions of the mask stand in the shape, if not in front; one place if they are flattened.
    """

    name: str
    mask: Tensor
    layout: torch.layout
    dense: tuple[int, ...] = ()
    blocksize: tuple[int, int] | None = None
    at: tuple[int, ...] = ()

    @property
    def places(self) -> tuple[int, ...]:
        """Where the dimensions of the mask stand."""
        return self.at or tuple(range(self.mask.ndim))

    @property
    def whole_mask(self) -> Tensor:
        known = self.known
        mask = known.reshape(*known.shape, *(1,) * len(self.dense)).expand(*known.shape, *self.dense)
        return mask.movedim(tuple(range(known.ndim)), self.places)

    @property
    def is_flat(self) -> bool:
        """Whether batch and ragged dimension are one."""
        return len(self.places) < self.mask.ndim

    @property
    def known(self) -> Tensor:
        """The mask without features, its dimensions in front."""
        return self.mask.flatten() if self.is_flat else self.mask

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.whole_mask.shape)

    @property
    def number(self) -> int:
        return int(self.whole_mask.sum())


def _random(*shape: int, share: float = 0.5) -> Tensor:
    torch.manual_seed(sum(shape))
    return torch.rand(shape) < share


def _of_lengths(lengths: Tensor, longest: int) -> Tensor:
    """Sequences that are specified in their first positions."""
    return torch.arange(longest) < lengths.unsqueeze(-1)


def _jagged(longest: int, *lengths: int) -> Tensor:
    return _of_lengths(torch.tensor(lengths), longest)


def _with_empty_line(*shape: int) -> Tensor:
    mask = _random(*shape)
    mask[1], mask[..., 2] = False, False
    mask[0, 0] = True
    return mask


def _blocks(mask: Tensor, height: int, width: int) -> Tensor:
    return mask.repeat_interleave(height, -2).repeat_interleave(width, -1)


NOTHING, ALL = torch.zeros(4, 6, dtype=torch.bool), torch.ones(4, 6, dtype=torch.bool)

STORAGES: tuple[Storage, ...] = (
    Storage("coo", _with_empty_line(4, 6), COO),
    Storage("csr", _with_empty_line(4, 6), CSR),
    Storage("csc", _with_empty_line(4, 6), CSC),
    Storage("bsr-2x3", _blocks(_random(3, 2), 2, 3), BSR, (), (2, 3)),
    Storage("bsc-2x3", _blocks(_random(3, 2), 2, 3), BSC, (), (2, 3)),
    Storage("jagged", _jagged(6, 3, 6, 0, 2), JAGGED),
    Storage("jagged-hybrid", _jagged(4, 2, 4, 1), JAGGED, (2,)),
    Storage("jagged-short", _jagged(5, 3, 1, 0, 2), JAGGED),
    Storage("jagged-batches", _jagged(4, 1, 4, 0, 3, 2, 2).reshape(2, 3, 4), JAGGED),
    Storage("jagged-empty", NOTHING, JAGGED),
    Storage("jagged-full", ALL, JAGGED),
    Storage("jagged-single", _jagged(6, 0, 0, 1, 0), JAGGED),
    Storage("jagged-no-sequences", torch.ones(0, 3, dtype=torch.bool), JAGGED),
    Storage("jagged-no-positions", torch.ones(3, 0, dtype=torch.bool), JAGGED),
    Storage("jagged-heads", _jagged(4, 3, 1), JAGGED, (2, 3), at=(0, 2)),
    Storage("jagged-turned", _jagged(3, 2, 3, 0, 1), JAGGED, (2,), at=(1, 0)),
    Storage("jagged-behind", _jagged(4, 2, 0, 4), JAGGED, (2,), at=(0, 2)),
    Storage("jagged-last", _jagged(4, 3, 1, 4), JAGGED, (2,), at=(1, 2)),
    Storage("jagged-flat", _jagged(4, 2, 0, 3), JAGGED, (2,), at=(0,)),
    Storage("jagged-flat-last", _jagged(3, 3, 1), JAGGED, (2,), at=(1,)),
)
BY_NAME = {storage.name: storage for storage in STORAGES}


def entries_of(storage: Storage) -> Tensor:
    """Entries (n,) in row-major order, a leaf: a zero and a tie among them."""
    torch.manual_seed(0)
    values = torch.rand(storage.number, dtype=torch.float64) * 4 - 2
    values[:2] = 0.0
    return values.requires_grad_()


def boolean(storage: Storage, entries: Tensor) -> MaskedTensor:
    """The entries with a Boolean mask, garbage under it."""
    mask = storage.whole_mask
    garbage = torch.tensor(GARBAGE, dtype=entries.dtype).repeat(mask.numel() // 4 + 1)[: mask.numel()]
    return mg.masked(garbage.reshape(mask.shape).index_put(tuple(mask.nonzero().T), entries), mask)


def stored(storage: Storage, entries: Tensor) -> MaskedTensor:
    """The entries on the layout."""
    places = storage.mask.nonzero().T
    if storage.at:  # from the order of the whole shape to that of the rows
        order = torch.zeros(storage.shape, dtype=torch.int64)
        order[storage.whole_mask] = torch.arange(storage.number)
        entries = entries[order.movedim(storage.at, tuple(range(len(storage.at))))[storage.known].reshape(-1)]
    pattern, order = pattern_of_places(places, tuple(storage.mask.shape), storage.layout, storage.blocksize)
    rows: Any = entries.reshape(places.shape[1], *storage.dense)
    if isinstance(pattern, JaggedPattern):
        pattern = pattern.moved(storage.places)
    return MaskedTensor(pattern.gathered(rows[order]), pattern)


def filled(result: MaskedTensor | Tensor) -> Tensor:
    """0 for what is unspecified; a reduction over everything is plain."""
    return result.filled(0) if isinstance(result, MaskedTensor) else result
