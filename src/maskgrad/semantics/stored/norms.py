"""Norms and softmax of stored values: over the entries of one group; normalisation keeps the pattern."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.errors import UndefinedOnMaskedError, UnsupportedLayoutError
from maskgrad.semantics.dimensions import as_dim, as_dims
from maskgrad.semantics.signatures import named
from maskgrad.semantics.stored.entries import StoredEntries
from maskgrad.semantics.stored.groups import Groups, group_of, grouped
from maskgrad.semantics.stored.reductions import is_inexact, over_groups

__all__ = ["NORMALIZED", "RULES"]


def _norm(entries: Tensor, groups: Groups, ord: float) -> Tensor:
    """Vector norm of order ``ord``; its gradient at a zero vector is 0, as in torch."""
    if not is_inexact(entries):
        raise RuntimeError(
            f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {entries.dtype}"
        )
    found = kernels.segment_norm(entries, groups, ord)
    return found.to(entries.dtype.to_real() if entries.is_complex() else entries.dtype)


def _vector_norm(
    input: StoredEntries, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    if (ord < 0 or ord == math.inf) and not all(input.shape[d] for d in as_dims(dim, len(input.shape))):
        raise RuntimeError(f"linalg.vector_norm cannot compute the {ord} norm on an empty dimension")
    return over_groups(_norm)(input, dim, keepdim, dtype=dtype, ord=float(ord))


def _any_norm(
    input: StoredEntries,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: None = None,
    dtype: Any = None,
) -> Any:
    """``torch.norm``: a vector norm over all given dimensions."""
    if p == "nuc":
        raise UndefinedOnMaskedError(
            "norm(p='nuc')",
            "singular values of a matrix with missing entries do not exist",
            "Fill the matrix first, x.filled(0.), or use p='fro'.",
        )
    return _vector_norm(input, 2 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


def _linalg_norm(
    A: StoredEntries,  # torch's name for it
    ord: Any = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    """``torch.linalg.norm`` where it is a vector norm: of everything, of vectors, and ``"fro"``."""
    one = isinstance(dim, int) or len(A.shape if dim is None else dim) == 1
    if ord is None or ord == "fro" or one:
        return _vector_norm(A, 2 if ord in (None, "fro") else ord, dim, keepdim, dtype=dtype)
    raise UnsupportedLayoutError(f"linalg.norm(ord={ord!r}) of a matrix", A.pattern.layout, tuple(A.shape))


def _normalize(input: StoredEntries, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> StoredEntries:
    """Divide by the p-norm of the entries, or by ``eps`` if that is larger; in the pattern of the input."""
    dims = as_dims(dim, len(input.shape))
    if all(d >= len(input.sizes) for d in dims):  # within dense dimensions every vector is complete
        inner = tuple(d - len(input.sizes) + 1 for d in dims)
        whole = input.entries if input.shape else input.entries.unsqueeze(1)
        entries = torch.nn.functional.normalize(whole, p, inner, eps).reshape(input.entries.shape)  # type: ignore[arg-type]
        return StoredEntries(input.pattern.gathered(entries), input.pattern)
    groups, entries, _ = grouped(input, dim)
    divisor = groups.expand(_norm(entries, groups, float(p)).clamp_min(eps))
    result = (entries / divisor).to(entries.dtype).reshape(input.entries.shape)
    return StoredEntries(input.pattern.gathered(result), input.pattern)


def _along(logarithm: bool) -> Callable[..., StoredEntries]:
    complete = torch.log_softmax if logarithm else torch.softmax

    def body(
        input: StoredEntries, dim: int, *rest: Any, dtype: Any = None, _stacklevel: int = 3
    ) -> StoredEntries:
        for extra in rest:  # F.softmax(x, dim, _stacklevel, dtype)
            dtype = extra if isinstance(extra, torch.dtype) else dtype
        axis, sparse = as_dim(dim, len(input.shape)), len(input.sizes)
        entries = input.entries if dtype is None else input.entries.to(dtype)
        if not entries.is_floating_point():
            complete(entries, 0)  # torch raises the error
        if axis >= sparse:  # every vector is complete
            whole = entries if input.shape else entries.unsqueeze(1)
            result = complete(whole, axis - sparse + 1).reshape(entries.shape)
        else:
            wide = entries.float() if entries.dtype in (torch.float16, torch.bfloat16) else entries
            groups = group_of(input.pattern, (axis,))
            result = groups.softmax(wide, logarithm).to(entries.dtype)
        return StoredEntries(input.pattern.gathered(result), input.pattern)

    return body


_softmax = _along(logarithm=False)


def _softmin(input: StoredEntries, *args: Any, **kwargs: Any) -> StoredEntries:
    return _softmax(StoredEntries(-input.values, input.pattern), *args, **kwargs)


#: Reductions; the others keep the pattern of the input.
RULES: dict[str, Callable[..., Any]] = {
    "linalg.vector_norm": named(_vector_norm),
    "norm": named(_any_norm),
    "linalg.norm": named(_linalg_norm),
}
NORMALIZED: dict[str, Callable[..., Any]] = {
    "nn.functional.normalize": named(_normalize),
    "softmax": named(_softmax),
    "log_softmax": named(_along(logarithm=True)),
    "nn.functional.softmin": named(_softmin),
}
