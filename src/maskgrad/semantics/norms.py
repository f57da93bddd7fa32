"""Vector norms of the specified entries."""

from __future__ import annotations

import math
from typing import Any

import torch

from maskgrad import kernels
from maskgrad.errors import UndefinedOnMaskedError
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.extrema import amin
from maskgrad.semantics.facts import Operation, functions_named
from maskgrad.semantics.numbers import REDUCED, Number
from maskgrad.semantics.signatures import named

__all__ = ["OPERATIONS", "of_an_extreme", "vector_norm"]

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
        # a NaN surfaces, and sends no gradient back, as in torch
        broken = sizes.isnan().any(dims, keepdim=True) if dims else sizes.isnan()
        least = amin(Entries(torch.where(broken, 1, sizes), mask), dims, True)
        result = Entries(torch.where(broken, torch.nan, least.values), least.mask)
        return (
            result if keepdim or not dims else Entries(result.values.squeeze(dims), result.mask.squeeze(dims))
        )
    if dtype is not None:
        torch.linalg.vector_norm(values.new_empty(1), dtype=dtype)  # torch says what cannot be converted
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
    """``torch.norm``: a vector norm over all dimensions named, whatever their number."""
    if p == "nuc":
        raise UndefinedOnMaskedError(
            "norm(p='nuc')",
            "singular values of a matrix with missing entries do not exist",
            "Fill the matrix first, x.filled(0.), or use p='fro'.",
        )
    return vector_norm(input, 2 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


def of_an_extreme(*args: Any, ord: Any = 2, p: Any = 2, **kwargs: Any) -> bool:
    """Whether the norm is the largest or least magnitude, or a power below 0: of an empty tensor PyTorch has none."""
    given = (args[1] if len(args) > 1 else ord, p)
    return any(isinstance(one, (int, float)) and (one < 0 or one == math.inf) for one in given)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "linalg.vector_norm",
        "reductions",
        (torch.linalg.vector_norm,),
        named(vector_norm),
        PATTERN,
        GRADIENT,
        identity=0,
        number=Number(0, dim=2, unless=of_an_extreme),
    ),
    Operation(
        "norm",
        "reductions",
        functions_named("norm")[0],
        named(norm),
        PATTERN,
        GRADIENT,
        identity=0,
        methods=("norm",),
        number=Number(0, dim=2, unless=of_an_extreme),
    ),
)
