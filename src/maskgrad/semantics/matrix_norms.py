"""Matrix norms that are made of sums and extrema: those of the specified entries. Singular values there are none."""

from __future__ import annotations

import math
from typing import Any

import torch

from maskgrad.errors import UndefinedOnMaskedError
from maskgrad.semantics.dimensions import as_dim, drop
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.extrema import amax, amin
from maskgrad.semantics.norms import norm_record, of_an_extreme, vector_norm
from maskgrad.semantics.numbers import REDUCED

GRADIENT = "torch's, over the specified entries; 0 at a zero matrix"


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
        torch.linalg.matrix_norm(input.values, "fro", dim)  # torch says what is wrong
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
    # a row without specified entries has no sum: it takes no part in the comparison
    sums = vector_norm(input, 1, summed, True, dtype=dtype)
    extreme = (amax if float(ord) > 0 else amin)(sums, compared, True)
    if keepdim:
        return extreme
    dims = (rows, columns)
    return Entries(drop(extreme.values, dims), drop(extreme.mask, dims))


def norm(
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
    """Whether PyTorch refuses this norm of an empty tensor: of a matrix the least sum, else as for vectors."""
    order = args[1] if len(args) > 1 else ord
    operand = args[0] if args else kwargs["A" if "A" in kwargs else "input"]
    if operand.values.ndim != 2:
        return of_an_extreme(operand, order)
    return isinstance(order, (int, float)) and order < 0


MATRIX = f"{REDUCED} (order below 0: masked)"
ANY = f"{REDUCED} (order below 0, of vectors also inf: masked)"
OPERATIONS = (
    norm_record(matrix_norm, "linalg.matrix_norm", MATRIX, GRADIENT, _has_none),
    norm_record(norm, "linalg.norm", ANY, GRADIENT, _has_none),
)
