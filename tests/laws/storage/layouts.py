"""The patterns on which every operation is tried, each on its own layout and with a Boolean mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns.conversion import pattern_of_places

__all__ = ["BY_NAME", "STORAGES", "Storage", "boolean", "entries_of", "stored"]

COO, CSR, CSC = torch.sparse_coo, torch.sparse_csr, torch.sparse_csc
BSR, BSC = torch.sparse_bsr, torch.sparse_bsc
GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e38)


@dataclass(frozen=True)
class Storage:
    """A pattern of the sparse dimensions, and how it is stored.

    Attributes:
        name: for test ids.
        mask: Boolean, over the sparse dimensions.
        layout: one of torch's sparse layouts.
        dense: sizes of the dense dimensions.
        blocksize: for the two blocked layouts.
    """

    name: str
    mask: Tensor
    layout: torch.layout
    dense: tuple[int, ...] = ()
    blocksize: tuple[int, int] | None = None

    @property
    def whole_mask(self) -> Tensor:
        mask = self.mask.reshape(*self.mask.shape, *(1,) * len(self.dense))
        return mask.expand(*self.mask.shape, *self.dense)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.whole_mask.shape)

    @property
    def number(self) -> int:
        return int(self.whole_mask.sum())

    def with_mask(self, mask: Tensor) -> Storage:
        return Storage(self.name, mask, self.layout, self.dense, self.blocksize)

    def other(self) -> Storage:
        """Another pattern of the same shape, on a layout that can store any."""
        torch.manual_seed(7)
        layout = self.layout if self.layout in (COO, CSR, CSC) and self.mask.ndim == 2 else COO
        return Storage("other", torch.rand(self.mask.shape) < 0.6, layout, self.dense)


def _random(*shape: int, share: float = 0.5) -> Tensor:
    torch.manual_seed(sum(shape))
    return torch.rand(shape) < share


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
    places = storage.mask.nonzero().T
    pattern, order = pattern_of_places(places, tuple(storage.mask.shape), storage.layout, storage.blocksize)
    rows: Any = entries.reshape(places.shape[1], *storage.dense)
    return MaskedTensor(pattern.gathered(rows[order]), pattern)


#: What exchanging rows and columns makes of a layout.
TURNED = {CSR: CSC, CSC: CSR, BSR: BSC, BSC: BSR}
