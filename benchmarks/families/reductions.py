"""Reductions over a row, a column, a dimension in the middle, and everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from benchmarks.case import Case, Comparison
from benchmarks.masked_comparison import (
    FORWARD,
    FORWARD_AND_BACKWARD,
    Formulation,
    masked_comparison,
)
from benchmarks.plan import Family, Point
from benchmarks.samples import random_mask, random_values

__all__ = ["FAMILY", "bytes_read", "formulation", "shape_of"]

NAME = "reductions"
LOWEST = float("-inf")
Dims = tuple[int, ...]
Where = Callable[[Tensor, Tensor, Dims], Tensor]

#: the operations whose dense form takes a single dimension
_SINGLE = frozenset(("prod", "argmax"))
_REPRESENTATIVES = ("mean", "var")
#: forward and backward
_DIFFERENTIATED = ("sum", "mean", "var", "amax", "logsumexp")
#: where the compiled peer takes part: what it is and whether backward
_COMPILED = frozenset(
    (("mean", FORWARD), ("mean", FORWARD_AND_BACKWARD), ("var", FORWARD), ("logsumexp", FORWARD))
)


def _variance(x: Tensor, mask: Tensor, dim: Dims) -> Tensor:
    count = mask.sum(dim, keepdim=True)
    mean = torch.where(mask, x, 0).sum(dim, keepdim=True) / count
    return torch.where(mask, x - mean, 0).square().sum(dim) / (count - 1).reshape(mean.sum(dim).shape)


_WHERE: dict[str, Where] = {
    "sum": lambda x, mask, dim: torch.where(mask, x, 0).sum(dim),
    "mean": lambda x, mask, dim: torch.where(mask, x, 0).sum(dim) / mask.sum(dim),
    "prod": lambda x, mask, dim: torch.where(mask, x, 1).prod(dim[0]),
    "amax": lambda x, mask, dim: torch.where(mask, x, LOWEST).amax(dim),
    "argmax": lambda x, mask, dim: torch.where(mask, x, LOWEST).argmax(dim[0]),
    "norm": lambda x, mask, dim: torch.linalg.vector_norm(torch.where(mask, x, 0), 2.0, dim),
    "var": _variance,
    "std": lambda x, mask, dim: _variance(x, mask, dim).sqrt(),
    "logsumexp": lambda x, mask, dim: torch.where(mask, x, LOWEST).logsumexp(dim),
}
_DENSE: dict[str, Callable[[Tensor, Dims], Tensor]] = {
    "sum": lambda x, dim: x.sum(dim),
    "mean": lambda x, dim: x.mean(dim),
    "prod": lambda x, dim: x.prod(dim[0]),
    "amax": lambda x, dim: x.amax(dim),
    "argmax": lambda x, dim: x.argmax(dim[0]),
    "norm": lambda x, dim: torch.linalg.vector_norm(x, 2.0, dim),
    "var": lambda x, dim: x.var(dim),
    "std": lambda x, dim: x.std(dim),
    "logsumexp": lambda x, dim: x.logsumexp(dim),
}
_DELETED: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "prod": torch.prod,
    "amax": torch.amax,
    "argmax": torch.amax,  # positions differ between ties: the values there are compared
    "norm": torch.linalg.vector_norm,
    "var": torch.var,
    "std": torch.std,
    "logsumexp": lambda left: left.logsumexp(0),
}


def formulation(name: str, dims: Dims, method: bool = False) -> Formulation:
    """How each contender says reduction ``name`` along ``dims``; maskgrad as a function or a method of the type."""
    where, dense, deleted = _WHERE[name], _DENSE[name], _DELETED[name]
    dim: Any = dims[0] if name in _SINGLE else dims
    order = (2.0,) if name == "norm" else ()
    ours, masked = getattr(mg.functional, name), getattr(torch.masked, name)
    return Formulation(
        # the type is made beforehand in real programs, and costs a few microseconds here
        ours=(lambda x, mask: getattr(mg.masked(x, mask), name)(dim))
        if method
        else (lambda x, mask: ours(x, *order, dim, mask=mask)),
        masked=lambda x, mask: masked(x, *order, dim, mask=mask),
        where=lambda x, mask: where(x, mask, dims),
        dense=lambda x: dense(x, dims),
        deleted=lambda left, _: deleted(left),
        dims=dims,
        read=_values_there(dims[0]) if name == "argmax" else None,
    )


def _values_there(dim: int) -> Callable[[Tensor, Any], Tensor]:
    return lambda x, found: x.gather(dim, found.long().unsqueeze(dim)).squeeze(
        dim
    )  # torch.masked's are floats


def bytes_read(x: Tensor, mask: Tensor) -> int:
    """What a reduction must read: each value, and each entry of the mask that memory holds."""
    return x.numel() * x.element_size() + mask.untyped_storage().nbytes()


def shape_of(size: int) -> tuple[int, int, int]:
    """A shape with a dimension in the middle, and about as many entries as a square matrix of this size."""
    side = max(round((size * size) ** (1 / 3)), 2)
    return side, side, side


def _cases(point: Point) -> Iterator[Case]:
    square = (point.size, point.size)
    if not point.in_full:
        for name in _REPRESENTATIVES:
            yield _case(point, name, square, (1,))
        return
    for name in _WHERE:
        if name == "prod" and point.dtype in ("bfloat16", "float16"):
            continue  # peers multiply in half precision, and a thousand roundings leave nothing to compare
        if name == "std":  # the root of the variance: once is enough
            yield _case(point, name, square, (1,))
            continue
        for dims in ((1,), (0,)) if name in _SINGLE else ((1,), (0,), (0, 1)):
            yield _case(point, name, square, dims)
        yield _case(point, name, shape_of(point.size), (1,), note="middle")
    for name in _DIFFERENTIATED:
        for dims in ((1,), (0,), (0, 1)) if name == "mean" else ((1,),):
            yield _case(point, name, square, dims, FORWARD_AND_BACKWARD)
    yield _case(point, "mean", square, (1,), method=True)
    yield _case(point, "mean", square, (0, 1), note="mask broadcast over columns")


def _case(
    point: Point,
    name: str,
    shape: tuple[int, ...],
    dims: Dims,
    work: str = FORWARD,
    note: str = "",
    method: bool = False,
) -> Case:
    def prepare() -> Comparison:
        x = random_values(shape, point.dtype)
        if name == "prod":  # a product of thousands of factors stays finite if they are close to 1
            x = 1 + (x - 0.5) / 100
        mask = random_mask(shape, point.density, dims if len(dims) == 1 else ())
        if note.startswith("mask broadcast"):
            mask = mask[:, :1].clone().expand(shape)
        compiles = (name, work) in _COMPILED and dims == (1,) and x.ndim == 2 and point.dtype == "float32"
        moved = bytes_read(x, mask) if work == FORWARD else None
        return masked_comparison(
            formulation(name, dims, method), x, mask, work, moved, with_compiled=compiles
        )

    where = "" if dims == tuple(range(len(shape))) else str(dims[0])
    operation = f"{'MaskedTensor.' if method else ''}{name}({where})"
    return Case(NAME, operation, work, shape, point.density, point.dtype, prepare, note)


FAMILY = Family(
    NAME,
    "sums, means, variances, extrema, norms over the specified entries",
    size_is="side of a square matrix",
    cases=_cases,
    sizes=(4096, 512),
    quick_size=256,
    densities=(0.5, 0.01, 0.1, 0.9, 1.0),
    dtypes=("float32", "float64", "bfloat16", "float16"),
)
