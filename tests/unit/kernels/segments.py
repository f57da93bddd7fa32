"""Formulas that take segments of a list of entries: ``(values, Rows(pointers, order, n), *variant)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels.segments import Rows
from tests.unit.kernels.suite import KernelSuite, Where

__all__ = ["SegmentSuite", "pointers_of", "rows_of"]

LAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "sliced": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "every second": lambda x: x.repeat_interleave(2, 0)[::2],
    "expanded": lambda x: x[:, :1].expand_as(x),
}
LENGTHS = [[3], [5, 1, 0, 31, 32, 33, 2, 0], [80, 3, 64], [], [0, 0]]


def pointers_of(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)


def rows_of(lengths: Sequence[int], order: Tensor | None = None) -> Rows:
    return Rows(pointers_of(lengths), order, sum(lengths))


class SegmentSuite(KernelSuite):
    """Segments may be empty; ``order`` says where their entries are, None: one behind the other."""

    layouts = tuple(LAYS)

    def call(self, operands: Sequence[Tensor], where: Where, variant: tuple[Any, ...]) -> Any:
        return getattr(kernels, self.kernel)(*operands, Rows(*where, len(operands[0])), *variant)

    def known(self, where: Where, first: Tensor) -> Tensor:
        there: Tensor = (where[0].diff() > 0).view(-1, *(1,) * (first.ndim - 1)).expand(first.shape)
        return there

    def soiled(self, operands: Sequence[Tensor], where: Where, garbage: float) -> list[Tensor]:
        return list(operands)

    def places(self, lengths: Sequence[int]) -> Iterator[Where]:
        yield pointers_of(lengths), None
        yield pointers_of(lengths), torch.randperm(sum(lengths))

    def many(self) -> Iterator[tuple[tuple[int, ...], Where]]:
        for lengths, dense in zip(LENGTHS, [(3,), (), (2, 2), (), (1,)], strict=True):
            for where in self.places(lengths):
                yield (sum(lengths), *dense), where

    def tables(self) -> Iterator[tuple[tuple[int, ...], Where]]:
        for lengths, dense in zip(LENGTHS[:3], [(2, 2), (), (3,)], strict=True):
            for where in self.places(lengths):
                yield (sum(lengths), *dense), where

    def strided(self, layout: str) -> Iterator[Any]:
        for where in self.places([7, 33]):
            yield (40, 3), LAYS[layout], where

    def large(self) -> Iterator[tuple[tuple[int, ...], Where]]:
        for width in ((), (17,)):
            lengths = torch.randint(0, 200, (300,)).tolist()
            for where in self.places([*lengths, 20_001]):
                yield (sum(where[0].diff().tolist()), *width), where

    def few(self) -> Iterator[tuple[tuple[int, ...], Where]]:
        for where, dense in zip(self.places([3, 0, 2]), [(2,), ()], strict=True):
            yield (5, *dense), where

    def rows(self, matrix: Tensor) -> Iterator[tuple[Tensor, Where]]:
        for values in (matrix, matrix.repeat(1, 20)):
            number, length = values.shape
            pointers = pointers_of([length] * number)
            yield values.reshape(-1), (pointers, None)
            order = torch.cat([torch.randperm(length) + k * length for k in range(number)])
            pair = torch.stack([values.reshape(-1), values.flip(1).reshape(-1)], -1)
            yield pair, (pointers, order)
