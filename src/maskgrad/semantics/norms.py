"""Norms of the specified entries: vector norms, and matrix norms that are sums or extrema."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from maskgrad import kernels
from maskgrad.errors import UndefinedOnMaskedError
from maskgrad.semantics.dimensions import as_dim, as_dims, drop
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.extrema import amax, amin
from maskgrad.semantics.facts import Operation, of_rule, record
from maskgrad.semantics.numbers import REDUCED, Number

PATTERN = f"{REDUCED} (order inf or below 0: masked)"
GRADIENT = "torch's, over the specified entries; 0 at a zero vector"


def vector_norm(
    input: Entries,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Entries:
    """``torch.linalg.vector_norm`` of the specified entries."""
    values, mask = input
    dims = as_dims(dim, values.ndim)
    if ord == -math.inf:  # the least magnitude: an inf under the mask could be taken for a specified one
        sizes = torch.where(mask, values if dtype is None else values.to(dtype), 1).abs()
        # a NaN is returned without a gradient, as in torch
        is_nan = sizes.isnan().any(dims, keepdim) if dims else sizes.isnan()
        least = amin(Entries(torch.where(sizes.isnan(), 1, sizes), mask), dims, keepdim)
        return Entries(torch.where(is_nan, torch.nan, least.values), least.mask)
    if dtype is not None:
        torch.linalg.vector_norm(values.new_empty(1), dtype=dtype)  # torch raises errors about the dtype
        values = values.to(dtype)
    return Entries(*kernels.masked_norm(values, mask, dims, keepdim, ord))


def norm(
    input: Entries,
    p: float | str | None = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: None = None,
    dtype: torch.dtype | None = None,
) -> Entries:
    """``torch.norm``: a vector norm over all given dimensions."""
    if p == "nuc":
        raise UndefinedOnMaskedError(
            "norm(p='nuc')",
            "singular values of a matrix with missing entries do not exist",
            "Fill the matrix first, x.filled(0.), or use p='fro'.",
        )
    return vector_norm(input, 2 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


def of_an_extreme(*args: Any, ord: Any = 2, p: Any = 2, **kwargs: Any) -> bool:
    """Whether the norm is the largest or least magnitude, or a power below 0: not defined if empty in PyTorch."""
    given = (args[1] if len(args) > 1 else ord, p)
    return any(isinstance(one, (int, float)) and (one < 0 or one == math.inf) for one in given)


def matrix_norm(
    input: Entries,
    ord: float | str = "fro",
    dim: Any = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Entries:
    """``torch.linalg.matrix_norm``: 'fro', and the largest or smallest sum of a row (±inf) or a column (±1)."""
    ndim = input.values.ndim
    if ndim < 2 or len(dim) != 2 or as_dim(dim[0], ndim) == as_dim(dim[1], ndim):
        torch.linalg.matrix_norm(input.values, "fro", dim)  # torch raises the errors
    if ord == "fro":
        return vector_norm(input, 2, dim, keepdim, dtype=dtype)
    if ord in (2, -2, "nuc"):
        raise UndefinedOnMaskedError(
            f"matrix_norm(ord={ord!r})",
            "singular values of a matrix with missing entries do not exist",
            "Fill the matrix first, x.filled(0.), or use ord='fro'.",
        )
    if ord not in (1, -1, math.inf, -math.inf):
        raise RuntimeError(f"linalg.matrix_norm: Order {ord} not supported.")
    rows, columns = (as_dim(d, ndim) for d in dim)
    summed, compared = (rows, columns) if abs(float(ord)) == 1 else (columns, rows)
    # rows without specified entries are ignored in the comparison
    sums = vector_norm(input, 1, summed, True, dtype=dtype)
    extreme = (amax if float(ord) > 0 else amin)(sums, compared, True)
    if keepdim:
        return extreme
    dims = (rows, columns)
    return Entries(drop(extreme.values, dims), drop(extreme.mask, dims))


def linalg_norm(
    input: Entries,
    ord: float | str | None = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Entries:
    """``torch.linalg.norm``: a matrix norm if there are two dimensions and an order, else a vector norm."""
    ndim = input.values.ndim
    if ord is None:
        return vector_norm(input, 2, dim, keepdim, dtype=dtype)
    if dim is None:
        if ndim > 2:
            raise RuntimeError(
                f"linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got {ndim}D."
            )
        dim = tuple(range(ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    if len(dims) == 2:
        return matrix_norm(input, ord, dims, keepdim, dtype=dtype)
    if isinstance(ord, str):
        raise RuntimeError(f"linalg.norm: order {ord!r} is one of matrices, found {len(dims)} dimension(s)")
    return vector_norm(input, ord, dims, keepdim, dtype=dtype)


def _has_none(*args: Any, ord: Any = None, **kwargs: Any) -> bool:
    """Return whether PyTorch refuses this norm of an empty tensor: the least sum of a matrix, else as for vectors."""
    order = args[1] if len(args) > 1 else ord
    operand = args[0] if args else kwargs["A" if "A" in kwargs else "input"]
    if operand.values.ndim != 2:
        return of_an_extreme(operand, order)
    return isinstance(order, (int, float)) and order < 0


def _record(
    rule: Callable[..., Entries], pattern: str, gradient: str, none: Callable[..., bool], padded: str
) -> Operation:
    """The record of a norm of ``torch.linalg``; ``none``: whether PyTorch refuses empty tensors."""
    name = rule.__name__.removeprefix("linalg_")
    facts: dict[str, Any] = {"number": Number(0, dim=2, unless=none), "padded": padded}
    functions = (getattr(torch.linalg, name),)
    return record(f"linalg.{name}", "reductions", rule, pattern, gradient, functions=functions, **facts)


MATRIX = f"{REDUCED} (order below 0: masked)"
ANY = f"{REDUCED} (order below 0, of vectors also inf: masked)"
ZERO_MATRIX = "torch's, over the specified entries; 0 at a zero matrix"
OPERATIONS = (
    of_rule(
        norm, "reductions", PATTERN, GRADIENT, number=Number(0, dim=2, unless=of_an_extreme), padded="mask"
    ),
    _record(vector_norm, PATTERN, GRADIENT, of_an_extreme, "mask"),
    _record(matrix_norm, MATRIX, ZERO_MATRIX, _has_none, ""),
    _record(linalg_norm, ANY, ZERO_MATRIX, _has_none, "mask"),
)
