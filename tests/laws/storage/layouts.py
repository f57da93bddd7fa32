"""The patterns on which every operation is tried, each on its own layout and with a Boolean mask."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns.conversion import pattern_of_places
from maskgrad.patterns.jagged import JaggedPattern

__all__ = ["BY_NAME", "STORAGES", "Storage", "boolean", "entries_of", "stored"]

COO, CSR, CSC, JAGGED = torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.jagged
BSR, BSC = torch.sparse_bsr, torch.sparse_bsc
GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e38)


@dataclass(frozen=True)
class Storage:
    """A pattern of the sparse dimensions, and how it is stored.

    Attributes:
        name: for test ids.
        mask: Boolean, over the sparse dimensions; of a jagged layout, over batch and ragged dimension.
        layout: one of torch's sparse layouts, or torch.jagged; torch.strided for a Boolean mask.
        dense: sizes of the dense dimensions; of a jagged layout, of the features.
        blocksize: for the two blocked layouts.
        at: where the dimensions of the mask stand in the shape, if not in front; one place if they are flattened.
        beside: the layout of an operand with another pattern, if not the same.
    """

    name: str
    mask: Tensor
    layout: torch.layout
    dense: tuple[int, ...] = ()
    blocksize: tuple[int, int] | None = None
    at: tuple[int, ...] = ()
    beside: torch.layout | None = None

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

    def with_mask(self, mask: Tensor) -> Storage:
        return replace(self, mask=mask)

    def other(self) -> Storage:
        """Another pattern of the same shape, on a layout that can store any."""
        torch.manual_seed(7)
        if self.layout == JAGGED and self.beside is None:
            return replace(
                self,
                mask=_of_lengths(
                    torch.randint(self.mask.shape[-1] + 1, self.mask.shape[:-1]), self.mask.shape[-1]
                ),
            )
        if self.beside is not None:
            return Storage("other", torch.rand(self.shape) < 0.6, self.beside)
        layout = self.layout if self.layout in (COO, CSR, CSC) and self.mask.ndim == 2 else COO
        return Storage("other", torch.rand(self.mask.shape) < 0.6, layout, self.dense)


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


def _balanced(batch: int, rows: int, columns: int, number: int) -> Tensor:
    """Batches with the same number of entries."""
    mask = torch.zeros(batch, rows * columns, dtype=torch.bool)
    for i in range(batch):
        torch.manual_seed(i)
        mask[i, torch.randperm(rows * columns)[:number]] = True
    return mask.reshape(batch, rows, columns)


def _blocks(mask: Tensor, height: int, width: int) -> Tensor:
    return mask.repeat_interleave(height, -2).repeat_interleave(width, -1)


NOTHING, ALL = torch.zeros(4, 6, dtype=torch.bool), torch.ones(4, 6, dtype=torch.bool)
SINGLE = NOTHING.clone()
SINGLE[2, 3] = True

STORAGES: tuple[Storage, ...] = (
    Storage("coo-1d", _random(7), COO),
    Storage("coo", _with_empty_line(4, 6), COO),
    Storage("coo-3d", _random(3, 4, 2), COO),
    Storage("coo-rows", _random(5), COO, (3,)),
    Storage("coo-hybrid", _random(3, 4), COO, (2,)),
    Storage("coo-empty", NOTHING, COO),
    Storage("coo-full", ALL, COO),
    Storage("coo-single", SINGLE, COO),
    Storage("coo-no-rows", torch.ones(0, 3, dtype=torch.bool), COO),
    Storage("csr", _with_empty_line(4, 6), CSR),
    Storage("csr-square", _random(4, 4), CSR),
    Storage("csr-empty", NOTHING, CSR),
    Storage("csr-full", ALL, CSR),
    Storage("csr-single", SINGLE, CSR),
    Storage("csr-no-rows", torch.ones(0, 3, dtype=torch.bool), CSR),
    Storage("csr-no-columns", torch.ones(3, 0, dtype=torch.bool), CSR),
    Storage("csr-hybrid", _random(3, 4), CSR, (2,)),
    Storage("csr-batched", _balanced(2, 4, 3, 5), CSR),
    Storage("csc", _with_empty_line(4, 6), CSC),
    Storage("csc-batched", _balanced(2, 3, 4, 5), CSC),
    Storage("csc-empty", NOTHING, CSC),
    Storage("bsr-1x1", _with_empty_line(4, 6), BSR, (), (1, 1)),
    Storage("bsr-2x3", _blocks(_random(3, 2), 2, 3), BSR, (), (2, 3)),
    Storage("bsr-batched", _blocks(_balanced(2, 2, 2, 2), 2, 1), BSR, (), (2, 1)),
    Storage("bsr-empty", NOTHING, BSR, (), (2, 3)),
    Storage("bsc-2x3", _blocks(_random(3, 2), 2, 3), BSC, (), (2, 3)),
    Storage("bsc-1x1", _with_empty_line(4, 6), BSC, (), (1, 1)),
    Storage("jagged", _jagged(6, 3, 6, 0, 2), JAGGED),
    Storage("jagged-hybrid", _jagged(4, 2, 4, 1), JAGGED, (2,)),
    Storage("jagged-short", _jagged(5, 3, 1, 0, 2), JAGGED, beside=torch.strided),
    Storage("jagged-batches", _jagged(4, 1, 4, 0, 3, 2, 2).reshape(2, 3, 4), JAGGED, beside=torch.strided),
    Storage("jagged-empty", NOTHING, JAGGED),
    Storage("jagged-full", ALL, JAGGED, beside=torch.strided),
    Storage("jagged-single", _jagged(6, 0, 0, 1, 0), JAGGED),
    Storage("jagged-no-sequences", torch.ones(0, 3, dtype=torch.bool), JAGGED),
    Storage("jagged-no-positions", torch.ones(3, 0, dtype=torch.bool), JAGGED),
    Storage("jagged-heads", _jagged(4, 3, 1), JAGGED, (2, 3), at=(0, 2)),
    Storage("jagged-turned", _jagged(3, 2, 3, 0, 1), JAGGED, (2,), at=(1, 0)),
    Storage("jagged-behind", _jagged(4, 2, 0, 4), JAGGED, (2,), at=(0, 2), beside=torch.strided),
    Storage("jagged-last", _jagged(4, 3, 1, 4), JAGGED, (2,), at=(1, 2)),
    Storage("jagged-flat", _jagged(4, 2, 0, 3), JAGGED, (2,), at=(0,)),
    Storage("jagged-flat-last", _jagged(3, 3, 1), JAGGED, (2,), at=(1,)),
)
BY_NAME = {storage.name: storage for storage in STORAGES}


def entries_of(
    storage: Storage, dtype: torch.dtype = torch.float64, seed: int = 0, low: float = -2.0
) -> Tensor:
    """Entries (n,) in row-major order, a zero and a tie among them; a leaf if it can be one."""
    torch.manual_seed(seed)
    values = torch.rand(storage.number, dtype=torch.float64) * 4 + low
    values[: 2 * (low < 0)] = 0.0  # stored zeros, which tie
    if dtype.is_complex:
        values = torch.complex(values, values.roll(1))
    if dtype == torch.bool:
        return values > 0
    values = values.to(dtype)
    return values.requires_grad_(values.is_floating_point() or values.is_complex())


def boolean(storage: Storage, entries: Tensor) -> MaskedTensor:
    """The entries with a Boolean mask, garbage under it."""
    number = storage.whole_mask.numel()
    garbage = torch.tensor(GARBAGE, dtype=torch.float64).repeat(number // 4 + 1)[:number]
    exact = not (entries.is_floating_point() or entries.is_complex())
    under = torch.full((number,), 77) if exact else garbage
    values = under.to(entries.dtype).reshape(storage.shape)
    places = tuple(storage.whole_mask.nonzero().T)
    return mg.masked(values.index_put(places, entries), storage.whole_mask)


def stored(storage: Storage, entries: Tensor) -> MaskedTensor:
    """The entries on the layout."""
    if storage.layout == torch.strided:
        return boolean(storage, entries)
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


#: What exchanging rows and columns makes of a layout.
TURNED = {CSR: CSC, CSC: CSR, BSR: BSC, BSC: BSR}
