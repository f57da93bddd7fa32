"""Decompositions about masks and holes, where PyTorch's exporter has none, or one that lets NaN through.

Each is ordinary PyTorch, for any shape, with the same result; ``NotImplemented`` keeps the call. What PyTorch cannot
export without masks either is left to PyTorch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.errors import NotExportableError

__all__ = ["decomposed", "table"]


def where(condition: Tensor, x: Any, y: Any) -> Any:
    """For a tensor and a scalar of a wider kind, or two scalars: determine the common dtype first."""
    if any(isinstance(operand, (torch.SymInt, torch.SymFloat, torch.SymBool)) for operand in (x, y)):
        return NotImplemented
    dtype = torch.result_type(x, y)
    if any(isinstance(operand, Tensor) and operand.dtype == dtype for operand in (x, y)):
        return NotImplemented
    if isinstance(y, Tensor):
        return torch.where(condition, x, y.to(dtype))
    first = x.to(dtype) if isinstance(x, Tensor) else torch.full((), x, dtype=dtype, device=condition.device)
    return torch.where(condition, first, y)


def _over_all(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """``amax`` and ``amin`` without dimensions, which PyTorch's exporter requires."""

    def body(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        if len(dim):
            return NotImplemented
        return function(x, tuple(range(x.ndim)), keepdim) if x.ndim else x.clone()

    return body


def _scan(
    x: Tensor,
    dim: int,
    combine: Callable[[Tensor, Tensor], Tensor],
    reduce: Callable[[Tensor], Tensor],
    neutral: float,
) -> Tensor:
    """Combine all entries up to each one, by doubling: after k rounds an entry covers the last 2ᵏ.

    If the size is unknown at export, each result is reduced separately, over a triangle.
    """
    x, size = x.movedim(dim, -1), x.shape[dim]
    if isinstance(size, int):
        reach = 1
        while reach < size:
            before = torch.full_like(x[..., :reach], neutral)
            x = combine(x, torch.cat([before, x[..., :-reach]], -1))
            reach *= 2
    else:
        places = torch.arange(size, device=x.device)
        rest = torch.full((), neutral, dtype=x.dtype, device=x.device)
        x = reduce(torch.where(places[:, None] >= places, x[..., None, :], rest))
    return x.movedim(-1, dim)


def cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Products."""
    if dtype is None:
        dtype = x.dtype if x.is_floating_point() else torch.int64
    x = x.to(dtype)
    return _scan(x, dim, torch.mul, lambda rows: rows.prod(-1), 1) if x.ndim else x.clone()


def cummax(x: Tensor, dim: int, *, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Largest (or smallest) entries so far, and their last positions."""
    if not x.ndim:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    combine, reduce = (torch.maximum, torch.amax) if largest else (torch.minimum, torch.amin)
    if x.is_floating_point():
        neutral = -math.inf if largest else math.inf
    else:
        neutral = torch.iinfo(x.dtype).min if largest else torch.iinfo(x.dtype).max
    values = _scan(x, dim, combine, lambda rows: reduce(rows, -1), neutral)
    is_it = x == values
    if x.is_floating_point():
        is_it = is_it | (torch.isnan(x) & torch.isnan(values))
    shape = [1] * x.ndim
    shape[dim] = -1
    places = torch.arange(x.shape[dim], device=x.device).reshape(shape)
    seen = torch.where(is_it, places, 0)
    return values, _scan(seen, dim, torch.maximum, lambda rows: rows.amax(-1), 0)


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """PyTorch's exporter multiplies by an identity matrix, whose zeros do not remove NaN."""
    moved = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = moved.shape[-2:]
    first_row, first_column = max(-offset, 0), max(offset, 0)
    length = torch.sym_max(torch.sym_min(rows - first_row, columns - first_column), 0)
    places = torch.arange(length, device=x.device) * (columns + 1) + (first_row * columns + first_column)
    return moved.reshape(*moved.shape[:-2], -1 if x.numel() else 0).index_select(-1, places)


def sort(
    x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Sort with ONNX's TopK of all entries, which is stable; it does not define the order of NaN."""
    if not x.ndim:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    order = _order(x, dim, descending)
    return x.gather(dim, order), order


def _order(x: Tensor, dim: int, descending: bool) -> Tensor:
    size = x.shape[dim]
    if not x.is_floating_point():
        # the two integer types that ONNX Runtime sorts
        keys = x if x.dtype in (torch.int32, torch.int64) else x.to(torch.int64)
        return torch.topk(keys, size, dim, descending)[1]
    nothing = torch.isnan(x)
    order = torch.topk(torch.where(nothing, float("inf"), x), size, dim, descending)[1]
    again = torch.topk(nothing.gather(dim, order).to(torch.int32), size, dim, descending)[1]
    return order.gather(dim, again)


def avg_pool(*args: Any, divisor_override: int | None = None) -> Any:
    """A mean; PyTorch's exporter ignores the divisor of a sum."""
    if divisor_override is None and len(args) < 7:
        return NotImplemented
    remedy = "Write F.avg_pool2d(x, kernel_size) * (entries of a window / divisor)"
    raise NotExportableError("avg_pool with divisor_override", "PyTorch's exporter ignores it", remedy)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(Q Kᵀ · scale + mask) V, where rows without keys are zero as in PyTorch, not NaN or a mean."""
    if dropout_p:
        return NotImplemented
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.matmul(query * factor, key.transpose(-2, -1))
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device)[:, None]
        allowed = rows >= torch.arange(key.shape[-2], device=query.device)[None, :]
    elif attn_mask is None:
        return torch.matmul(torch.softmax(scores, -1), value)
    elif attn_mask.dtype == torch.bool:
        allowed = attn_mask
    else:
        scores = scores + attn_mask
        allowed = scores != float("-inf")
    weights = safe_softmax(torch.where(allowed, scores, float("-inf")), -1)
    return torch.matmul(weights.to(value.dtype), value)


def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax that is zero for a row of −∞."""
    x = x if dtype is None else x.to(dtype)
    largest = x.amax(dim, keepdim=True)
    powers = torch.exp(x - torch.where(largest == float("-inf"), 0.0, largest))
    total = powers.sum(dim, keepdim=True)
    return powers / torch.where(total == 0, 1.0, total)


def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Any:
    """Repeat position i ``repeats[i]`` times: the rows of a compressed layout; the total must be known."""
    if output_size is None:
        return NotImplemented
    ends = torch.cumsum(repeats.to(torch.int64), 0)
    return (ends[None, :] <= torch.arange(output_size, device=repeats.device)[:, None]).sum(1)


def table() -> dict[Any, Callable[..., Any]]:
    """Return the implementation of each operation, by overload."""
    aten = torch.ops.aten
    return {
        **dict.fromkeys((aten.where.Scalar, aten.where.ScalarOther, aten.where.ScalarSelf), where),
        aten.amax.default: _over_all(torch.amax),
        aten.amin.default: _over_all(torch.amin),
        aten.cumprod.default: cumprod,
        aten.cummax.default: cummax,
        aten.cummin.default: functools.partial(cummax, largest=False),
        aten.diagonal.default: diagonal,
        aten.diagonal_copy.default: diagonal,
        aten.linalg_diagonal.default: functools.partial(diagonal, dim1=-2, dim2=-1),
        aten.repeat_interleave.Tensor: repeat_interleave,
        # as eagerly: ONNX Runtime (1.31) ends the process for its Einsum of an empty batch
        aten.einsum.default: functools.partial(
            aten.einsum.default._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd
        ),
        aten.sort.default: sort,
        aten.sort.stable: sort,
        aten.argsort.default: lambda *args, **options: sort(*args, **options)[1],
        aten.argsort.stable: lambda *args, **options: sort(*args, **options)[1],
        aten.avg_pool2d.default: avg_pool,
        aten.avg_pool3d.default: avg_pool,
        aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
        aten._safe_softmax.default: safe_softmax,
    }


def decomposed(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Replace the operations in a program, also inside others."""
    found: torch.export.ExportedProgram = program.run_decompositions(table())
    return found
