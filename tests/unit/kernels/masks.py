"""Kernels that take a mask: ``(*operands, mask, dim, keepdim, *variant)``, or ``(…, mask, dim, …)`` for each entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.suite import KernelSuite, Where

__all__ = ["MaskedSuite", "soiled"]

SHAPES_AND_DIMS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((), ()), ((), (0,)), ((), (-1,)), ((7,), (0,)), ((1,), (0,)), ((5, 3), (0,)), ((5, 3), (1,)), ((5, 3), (0, 1)),
    ((5, 3), ()), ((2, 3, 5), (1,)), ((2, 3, 5), (0, 2)), ((2, 3, 5), (-1, 0)), ((2, 3, 2, 3), (0, 2)),
    ((2, 3, 2, 3), (1, 3)), ((1, 3, 1, 2), (0, 2)), ((0,), (0,)), ((0, 3), (0,)), ((0, 3), (1,)), ((3, 0, 2), (1, 2)),
]  # fmt: skip


def permuted(*order: int) -> Callable[[Tensor], Tensor]:
    """The same entries, in memory in another order of dimensions."""
    return lambda x: x.permute(order).contiguous().permute([order.index(d) for d in range(x.ndim)])


def sliced(x: Tensor) -> Tensor:
    """The same entries with gaps: every second of each row."""
    return torch.stack([x, x], -1).flatten(-2)[..., ::2]


def expanded(*dims: int) -> Callable[[Tensor], Tensor]:
    """Those of the first slice repeat along some dimensions."""

    def repeat(x: Tensor) -> Tensor:
        few = x.nan_to_num(0.3) if x.is_floating_point() else x
        for d in dims:
            few = few.narrow(d, 0, 1)
        return few.expand(x.shape)

    return repeat


def whole(x: Tensor) -> Tensor:
    return torch.ones((), dtype=torch.bool).expand(x.shape)


def plain(x: Tensor) -> Tensor:
    return x


#: Shape, and where values and mask lie.
LAYOUTS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "contiguous": ((6, 70, 5), plain, plain),
    "permuted together": ((5, 6, 70), permuted(1, 2, 0), permuted(1, 2, 0)),
    "values permuted": ((6, 70, 5), permuted(2, 1, 0), plain),
    "mask permuted": ((6, 70, 5), plain, permuted(2, 1, 0)),
    "sliced": ((6, 70, 5), sliced, plain),
    "mask sliced": ((6, 70, 5), plain, sliced),
    "sliced rows": ((6, 70, 5), lambda x: torch.cat([x, x], 1)[:, :70], lambda x: torch.cat([x, x])[6:]),
    "expanded values": ((6, 70, 5), expanded(0), plain),
    "one value": ((6, 70, 5), expanded(0, 1, 2), plain),
    "token mask": ((6, 70, 5), plain, expanded(2)),
    "feature mask": ((6, 70, 5), plain, expanded(0, 1)),
    "head mask": ((2, 3, 70, 5), plain, expanded(1, 2)),
    "query mask": ((2, 3, 7, 50), plain, expanded(1)),
    "scalar mask": ((6, 70, 5), plain, whole),
    "both expanded": ((6, 70, 5), expanded(1, 2), expanded(2)),
    "channels last": ((2, 3, 20, 5), permuted(0, 2, 3, 1), plain),
    "offset": ((6, 70, 5), lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape), plain),
}


def soiled(values: Tensor, mask: Tensor, garbage: float) -> Tensor:
    """``values`` with ``garbage`` under the mask (the largest number for integers)."""
    if not values.is_floating_point():
        garbage = True if values.dtype == torch.bool else torch.iinfo(values.dtype).max
    elif garbage == 1e38:
        garbage = min(garbage, torch.finfo(values.dtype).max)
    return values.masked_fill(~mask, garbage)


class MaskedSuite(KernelSuite):
    """Attributes: as of :class:`KernelSuite`, and

    keeps: whether a call says if reduced dimensions are kept; if not, everything is reduced, or nothing.
    """

    keeps: ClassVar[bool] = True
    layouts = tuple(LAYOUTS)

    def where(self, mask: Tensor, dim: tuple[int, ...], keepdim: bool = False) -> Where:
        return (mask, dim, keepdim) if self.keeps else (mask, dim)

    def known(self, where: Where, first: Tensor) -> Tensor:
        """Where the first result means something."""
        mask, dim, *_ = where
        return (mask if self.per_entry or not dim or not mask.ndim else mask.any(dim, True)).reshape(
            first.shape
        )

    def soiled(self, operands: Sequence[Tensor], where: Where, garbage: float) -> list[Tensor]:
        return [soiled(x, where[0], garbage) if x.shape == where[0].shape else x for x in operands]

    def takes(self, shape: tuple[int, ...], dim: tuple[int, ...]) -> bool:
        """Whether a call may reduce these dimensions."""
        return self.keeps or dim == tuple(range(len(shape)))

    def dims(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """All that a call may reduce."""
        some = [tuple(d for d in range(len(shape)) if k >> d & 1) for k in range(1, 2 ** len(shape))]
        return [dim for dim in some if self.takes(shape, dim)]

    def many(self) -> Iterator[tuple[tuple[int, ...], Where]]:
        for shape, dim in SHAPES_AND_DIMS:
            if self.takes(shape, dim):
                for keepdim in (False, True)[: 1 + self.keeps]:
                    yield shape, self.where(torch.rand(shape) < 0.6, dim, keepdim)

    def tables(self) -> Iterator[tuple[tuple[int, ...], Where]]:
        mask = torch.rand(37, 53) < 0.5
        mask[3], mask[:, 5], mask[:30, 7] = False, False, False
        for dim in self.dims((37, 53)):
            yield (37, 53), self.where(mask, dim)

    def strided(self, layout: str) -> Iterator[Any]:
        shape, lay, lay_mask = LAYOUTS[layout]
        mask = lay_mask(torch.rand(shape) < 0.5)
        for dim in self.dims(shape):
            yield shape, lay, self.where(mask, dim)

    def large(self) -> Iterator[tuple[tuple[int, ...], Where]]:
        """Rows about as long as a block, long ones, narrow columns (joined, but for a prime number), padding."""
        for shape in (
            (3, 31),
            (3, 1023),
            (3, 1024),
            (3, 1025),
            (1, 70_001),
            (3, 20_001),
            (9_984, 3),
            (9_973, 2),
            (8_192, 1),
            (2, 5_001, 5),
            (130, 1301),
        ):
            mask = torch.rand(shape) < 0.5
            mask[..., -1] &= torch.rand(shape[:-1]) < 0.001 if len(shape) == 2 else True
            for dim in self.dims(shape):
                yield shape, self.where(mask, dim)
        for shape in ((64, 200, 8), (2, 9_000, 2), (5, 300, 7)):
            lengths = torch.randint(0, shape[1] + 1, (shape[0],))
            lengths[:2] = torch.tensor([0, shape[1]])
            mask = (torch.arange(shape[1]) < lengths[:, None])[..., None].expand(shape)
            for dim in self.dims(shape)[1:] or self.dims(shape):
                yield shape, self.where(mask, dim)

    def few(self) -> Iterator[tuple[tuple[int, ...], Where]]:
        mask = torch.rand(3, 4, 2) < 0.6
        mask[0], mask[:, 1], mask[:, :, 0] = False, False, mask[:, :, 1]
        for dim in ((1,), (0, 2), (2,), (1, 2), (0, 1, 2)):
            if self.takes((3, 4, 2), dim):
                yield (3, 4, 2), self.where(mask, dim)

    def rows(self, matrix: Tensor) -> Iterator[tuple[Tensor, Where]]:
        for values in (matrix, matrix.repeat(1, 400)):
            mask = torch.ones_like(values, dtype=torch.bool)
            yield values, self.where(mask, (1,))
            if self.takes(tuple(values.t().shape), (0,)):
                yield values.t().contiguous(), self.where(mask.t(), (0,))

    def test_mistakes_in_the_mask_are_named(self) -> None:
        shape, (mask, *rest) = next(self.few())
        operands = self.operands(shape)
        with pytest.raises(
            TypeError, match=r"mask must be a Boolean tensor \(True = specified\); got torch.float32"
        ):
            self.call(operands, (mask.float(), *rest), self.variants[0])
        with pytest.raises(
            ValueError, match=r"mask must have the shape of values, \(3, 4, 2\); got \(4, 2\); expand"
        ):
            self.call(operands, (mask[0], *rest), self.variants[0])
