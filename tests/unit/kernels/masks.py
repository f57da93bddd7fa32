"""Kernels that take a mask: ``(*operands, mask, dim, keepdim, *variant)``, or ``(…, mask, dim, …)`` for each entry."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.kernels.deletion import GARBAGE, Where
from tests.unit.kernels.suite import KernelSuite

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

    keeps: whether a call says if reduced dimensions are kept.
    one_dim: whether it takes one dimension, not several.
    special_numbers: those that :meth:`drawn` puts among the values; ``ties``: whether it rounds them.
    """

    keeps: ClassVar[bool] = True
    one_dim: ClassVar[bool] = False
    special_numbers: ClassVar[Sequence[float]] = (0.0, 1.0)
    ties: ClassVar[bool] = True

    def where(self, mask: Tensor, dim: tuple[int, ...], keepdim: bool = False) -> Where:
        return (mask, dim, keepdim) if self.keeps else (mask, dim)

    def call(self, operands: Sequence[Tensor], where: Where, variant: tuple[Any, ...]) -> Any:
        mask, dim, *rest = where
        one: Any = dim[0] if self.one_dim else dim
        return super().call(operands, (mask, one, *rest), variant)

    def groups(self, where: Where, shape: Sequence[int]) -> tuple[Tensor, list[int], list[int]]:
        mask, dim, *rest = where
        ndim = len(shape)
        dims = {d % ndim for d in dim} if ndim else set()
        kept = [d for d in range(ndim) if d not in dims]
        order = [*kept, *sorted(dims)]
        table = math.prod(shape[d] for d in kept), math.prod(shape[d] for d in dims)
        index = torch.arange(math.prod(shape)).view(tuple(shape)).permute(order).reshape(table)
        here = mask.permute(order).reshape(table)
        keepdim = rest[0] if self.keeps else True
        of_groups = [1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims]
        return index[here], here.sum(1).tolist(), of_groups

    def soiled(self, operands: Sequence[Tensor], where: Where, garbage: float) -> list[Tensor]:
        return [soiled(x, where[0], garbage) if x.shape == where[0].shape else x for x in operands]

    def takes(self, shape: tuple[int, ...], dim: tuple[int, ...]) -> bool:
        """Whether a call may reduce these dimensions."""
        return not self.one_dim or (bool(shape) and len(dim) == 1)

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

    def strided(self) -> dict[str, Callable[[], Iterator[Any]]]:
        def cases(name: str) -> Callable[[], Iterator[Any]]:
            def made() -> Iterator[Any]:
                shape, lay, lay_mask = LAYOUTS[name]
                mask = lay_mask(torch.rand(shape) < 0.5)
                for dim in self.dims(shape):
                    yield shape, lay, self.where(mask, dim)

            return made

        return {name: cases(name) for name in LAYOUTS}

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

    def drawn(self, draw: Any) -> tuple[tuple[Tensor, ...], Where, tuple[Any, ...]]:
        shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)))
        assume(self.dims(shape))
        dim = draw(st.sampled_from(self.dims(shape)))
        torch.manual_seed(draw(st.integers(0, 2**16)))
        variant = draw(st.sampled_from(list(self.variants)))
        sizes = tuple(1 if draw(st.booleans()) else n for n in shape)
        mask = (torch.rand(sizes) < draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))).expand(shape)
        where = self.where(mask, dim, draw(st.booleans()))
        first, *others = self.operands(shape, where, variant)
        if self.ties and draw(st.booleans()):
            first = first.round()
        for number in self.special_numbers:
            if draw(st.booleans()):
                first = first.masked_fill(torch.rand(shape) < draw(st.sampled_from([0.02, 0.9])), number)
        order = draw(st.permutations(range(len(shape))))
        operands = self.soiled((first, *others), where, draw(st.sampled_from(GARBAGE)))
        dtype = draw(st.sampled_from([torch.float64, torch.float32]))
        return (
            tuple(permuted(*order)(x.to(dtype)) if x.shape == shape else x.to(dtype) for x in operands),
            where,
            variant,
        )

    def test_mistakes_in_the_mask_are_named(self) -> None:
        shape, (mask, *rest) = next(self.few())
        operands = self.operands(shape, (mask, *rest), self.variants[0])
        with pytest.raises(
            TypeError, match=r"mask must be a Boolean tensor \(True = specified\); got torch.float32"
        ):
            self.call(operands, (mask.float(), *rest), self.variants[0])
        with pytest.raises(
            ValueError, match=r"mask must have the shape of values, \(3, 4, 2\); got \(4, 2\); expand"
        ):
            self.call(operands, (mask[0], *rest), self.variants[0])
