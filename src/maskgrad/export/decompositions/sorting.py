"""Sorting, and what is read off a sorted line: NaN last, equals in the order in which they came."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BODIES", "sort"]


def sort(
    x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Tensor, Tensor]:
    """ONNX's TopK of everything, which puts the first of equals first; it promises nothing about NaN."""
    if not x.ndim:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    order = _order(x, dim, descending)
    return x.gather(dim, order), order


def stably(
    x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """The same with arguments in another order."""
    return sort(x, dim, descending)


def argsort(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Tensor:
    """The second result."""
    return sort(x, dim, descending)[1]


def argsort_stably(x: Tensor, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Tensor:
    """The same with arguments in another order."""
    return sort(x, dim, descending)[1]


def _order(x: Tensor, dim: int, descending: bool) -> Tensor:
    size = x.shape[dim]
    if not x.is_floating_point():
        # the two integers that ONNX Runtime sorts
        keys = x if x.dtype in (torch.int32, torch.int64) else x.to(torch.int64)
        return torch.topk(keys, size, dim, descending)[1]
    nothing = torch.isnan(x)
    order = torch.topk(torch.where(nothing, float("inf"), x), size, dim, descending)[1]
    again = torch.topk(nothing.gather(dim, order).to(torch.int32), size, dim, descending)[1]
    return order.gather(dim, again)


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The entry number k of a sorted line."""
    if not x.ndim:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    values, order = sort(x, dim)
    values, order = values.narrow(dim, k - 1, 1), order.narrow(dim, k - 1, 1)
    return (values, order) if keepdim else (values.squeeze(dim), order.squeeze(dim))


def median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower one of the two in the middle; NaN if there is one."""
    return _middle(x, dim, keepdim, ignore_nan=False)


def nanmedian(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The same of what is not NaN."""
    return _middle(x, dim, keepdim, ignore_nan=True)


def median_of_all(x: Tensor) -> Tensor:
    """The median of a flat tensor."""
    return median(x.flatten(), 0)[0]


def nanmedian_of_all(x: Tensor) -> Tensor:
    """The same of what is not NaN."""
    return nanmedian(x.flatten(), 0)[0]


def _middle(x: Tensor, dim: int, keepdim: bool, ignore_nan: bool) -> tuple[Tensor, Tensor]:
    if not x.ndim:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    values, order = sort(x, dim)
    size = x.shape[dim]
    at = torch.zeros_like(order.narrow(dim, 0, 1)) + (size - 1) // 2
    if x.is_floating_point():
        numbers = size - torch.isnan(x).sum(dim, keepdim=True)
        if ignore_nan:
            at = torch.div((numbers - 1).clamp(min=0), 2, rounding_mode="floor")
        else:
            at = torch.where(numbers < size, numbers, at)
    values, order = values.gather(dim, at), order.gather(dim, at)
    return (values, order) if keepdim else (values.squeeze(dim), order.squeeze(dim))


BODIES = {
    "sort": sort,
    "sort.stable": stably,
    "argsort": argsort,
    "argsort.stable": argsort_stably,
    "msort": lambda x: sort(x, 0)[0],
    "kthvalue": kthvalue,
    "median.dim": median,
    "nanmedian.dim": nanmedian,
    "median": median_of_all,
    "nanmedian": nanmedian_of_all,
}
