"""Differentiable sums, means and counts of the specified entries of all ranks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from maskgrad.distributed.agreement import Postponed
from maskgrad.distributed.global_sums import global_sums
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.tensor import of_entries, stored_of
from maskgrad.semantics import numbers
from maskgrad.semantics.entries import Entries

__all__ = ["count", "mean", "sum"]

Masked = Tensor | MaskedTensor
Dim = int | tuple[int, ...] | None


def sum(x: Masked, dim: Dim = None, keepdim: bool = False, *, group: Any = None) -> Any:
    r"""Sum of the specified entries of all ranks, :math:`\sum_r \sum_{i: m^{(r)}_i} x^{(r)}_i`.

    Args:
        x: MaskedTensor of any layout, or strided tensor (fully specified); may be empty or fully masked on some ranks.
        dim: dimensions to reduce, besides the ranks; None: all.
        keepdim: keep them with size 1.
        group: a process group of any backend; None: the default one.

    Returns:
        The same on all ranks: a plain scalar without ``dim``; with it masked if ``x`` is, and unspecified where no rank
        has a specified entry. Half-precision values are added in float32.

    Gradient:
        The sum over the ranks of incoming gradients, at specified entries, exactly 0 elsewhere: if every rank computes
        the same loss, W times that of one process, which averaging over the ranks corrects (else divide the loss by W).
        Every rank must run the backward pass.

    Raises:
        TypeError: ``x`` is not a strided tensor or MaskedTensor. On all ranks, as the next one.
        ValueError: the reduced tensors differ in shape or dtype between the ranks.
        RuntimeError: there is no process group; a rank has ended, or did not respond within the group's timeout.

    Dense equivalent: ``torch.where(mask, x, 0).sum(dim)`` and ``torch.distributed.all_reduce``.

    Example:
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> mg.distributed.sum(mg.from_nan(torch.tensor([1., float("nan"), 3.])))
        tensor(4.)
        >>> torch.distributed.destroy_process_group()

    Source: ``torch.distributed.nn.functional.all_reduce``.
    """
    total, number, wanted = _totals(x, dim, keepdim, group, "sum")
    return _result(total.to(wanted), number, x, dim, 0)


def mean(x: Masked, dim: Dim = None, keepdim: bool = False, *, group: Any = None) -> Any:
    r"""Mean of the specified entries of all ranks, each counted once: :math:`\sum_r \sum_i x^{(r)}_i / \sum_r n^{(r)}`.

    The mean of the ranks' means differs if they have different numbers of entries.

    Args:
        x: as in :func:`maskgrad.distributed.sum`.
        dim: dimensions to reduce, besides the ranks; None: all.
        keepdim: keep them with size 1.
        group: a process group of any backend; None: the default one.

    Returns:
        As :func:`maskgrad.distributed.sum`; without ``dim`` NaN (with a gradient of zero) if no rank specifies
        anything.

    Gradient:
        That of :func:`maskgrad.distributed.sum`, divided by the number of entries of all ranks.

    Raises:
        As :func:`maskgrad.distributed.sum`; TypeError for integers.

    Dense equivalent: ``x[mask].mean()`` of the joint batch.

    Example:
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> mg.distributed.mean(mg.from_nan(torch.tensor([1., float("nan"), 3.])))
        tensor(2.)
        >>> torch.distributed.destroy_process_group()

    Source: Ott et al., "fairseq", NAACL 2019: gradients are normalized by the number of tokens on all workers.
    """
    total, number, wanted = _totals(x, dim, keepdim, group, "mean")
    divisor = number.clamp(min=1) if isinstance(x, MaskedTensor) else number
    return _result((total / divisor).to(wanted), number, x, dim, math.nan)


def count(x: Masked, dim: Dim = None, keepdim: bool = False, *, group: Any = None) -> Tensor:
    r"""Number of the specified entries of all ranks, :math:`\sum_r \sum_i m^{(r)}_i`, int64.

    Args:
        x: MaskedTensor of any layout, or strided tensor (fully specified).
        dim: dimensions to count over, besides the ranks; None: all.
        keepdim: keep them with size 1.
        group: a process group of any backend; None: the default one.

    Returns:
        Plain tensor, the same on all ranks. Gradient: none.

    Raises:
        As :func:`maskgrad.distributed.sum`.

    Dense equivalent: ``mask.sum(dim)`` and ``torch.distributed.all_reduce``.

    Example:
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> mg.distributed.count(mg.from_nan(torch.tensor([1., float("nan"), 3.])))
        tensor(2)
        >>> torch.distributed.destroy_process_group()

    Source: arithmetic.
    """
    ranks = ProcessGroup(group, "count")
    number = torch.zeros((), dtype=torch.int64)
    with Postponed() as postponed:
        _check(x, "count")
        number = _number(x, dim, keepdim)
    return global_sums(ranks, [number], postponed.error)[0]


def _totals(x: Masked, dim: Dim, keepdim: bool, group: Any, what: str) -> tuple[Tensor, Tensor, torch.dtype]:
    """The sum of the entries of all ranks, their number, and the dtype of the result."""
    ranks = ProcessGroup(group, what)
    total = number = torch.zeros(())
    wanted = torch.float32
    with Postponed() as postponed:
        _check(x, what)
        is_integer = not (x.dtype.is_floating_point or x.dtype.is_complex)
        wide = torch.int64 if is_integer else torch.promote_types(x.dtype, torch.float32)
        wanted = wide if is_integer else x.dtype
        added = x.sum(dim, keepdim, dtype=wide)
        total = added.filled(0) if isinstance(added, MaskedTensor) else added
        number = _number(x, dim, keepdim)
    total, number = global_sums(ranks, [total, number], postponed.error)
    return total, number, wanted


def _check(x: object, what: str) -> None:
    if not isinstance(x, (Tensor, MaskedTensor)):
        raise TypeError(f"{what}: x must be a tensor or a MaskedTensor, found {type(x).__name__}")
    if isinstance(x, Tensor) and x.layout is not torch.strided:
        raise TypeError(
            f"{what}: x must be a strided tensor or a MaskedTensor, found layout {x.layout}; mg.from_sparse(x) takes "
            "the stored entries, x.to_dense() all entries"
        )
    if what == "mean" and not (x.dtype.is_floating_point or x.dtype.is_complex):
        raise TypeError(f"{what}: x has dtype {x.dtype}; convert it to a floating-point or complex one")


def _number(x: Masked, dim: Dim, keepdim: bool) -> Tensor:
    """Number of specified entries of this rank."""
    if not isinstance(x, MaskedTensor):
        return torch.ones((), dtype=torch.int64, device=x.device).expand(x.shape).sum(dim, keepdim)
    if stored_of(x) is None:
        return x.mask.sum(dim, keepdim)
    ones = MaskedTensor(torch.ones_like(x._values, dtype=torch.int64), x._pattern)
    number = ones.sum(dim, keepdim)
    return number.filled(0) if isinstance(number, MaskedTensor) else number


def _result(values: Tensor, number: Tensor, x: Masked, dim: Dim, nothing: float) -> Any:
    """Masked if ``x`` is, unless it is a scalar: then ``nothing`` if there are no entries."""
    if not isinstance(x, MaskedTensor):
        return values
    if values.ndim == 0 and numbers.over_everything(dim):
        return numbers.number(Entries(values, number > 0), nothing)
    return of_entries(values, number > 0)
