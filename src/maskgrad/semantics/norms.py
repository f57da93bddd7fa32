"""Vector norms of the specified entries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from maskgrad import kernels
from maskgrad.errors import UndefinedOnMaskedError
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.extrema import amin
from maskgrad.semantics.facts import record
from maskgrad.semantics.numbers import REDUCED, Number
from maskgrad.semantics.signatures import named

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskgrad.semantics.facts import Operation

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


def norm_record(
    rule: Callable[..., Entries], name: str, pattern: str, gradient: str, none: Callable[..., bool]
) -> Operation:
    """The record of a norm, of vectors or of matrices; ``none``: whether PyTorch has none of an empty tensor."""
    functions = (getattr(torch.linalg, name.removeprefix("linalg.")),) if name != "norm" else None
    number = Number(0, dim=2, unless=none)
    return record(name, "reductions", named(rule), pattern, gradient, functions=functions, number=number)


OPERATIONS = tuple(
    norm_record(rule, name, PATTERN, GRADIENT, of_an_extreme)
    for rule, name in ((vector_norm, "linalg.vector_norm"), (norm, "norm"))
)
