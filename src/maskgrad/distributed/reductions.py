"""Differentiable sums, means and counts of the specified entries of all ranks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from maskgrad.distributed.agreement import Postponed, check_choice
from maskgrad.distributed.global_sums import Gradients, global_sums
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.tensor import of_entries, stored_of
from maskgrad.semantics import numbers
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.variance import root

__all__ = ["count", "mean", "std", "sum", "var"]

Masked = Tensor | MaskedTensor
Dim = int | tuple[int, ...] | None


def sum(
    x: Masked,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    group: Any = None,
    gradients: Gradients = "averaged",
) -> Any:
    r"""Sum of the specified entries of all ranks, :math:`\sum_r \sum_{i: m^{(r)}_i} x^{(r)}_i`.

    Args:
        x: MaskedTensor of any layout, or strided tensor (fully specified); may be empty or fully masked on some ranks.
        dim: dimensions to reduce, besides the ranks; None: all.
        keepdim: keep them with size 1.
        dtype: of the result; None: as in ``torch.sum``.
        group: a process group of any backend; None: the default one.
        gradients: later treatment of the ranks' gradients. ``"averaged"``, as :func:`maskgrad.distributed.prepare` and
            DistributedDataParallel do; ``"summed"``, or none.

    Returns:
        The same on all ranks: a plain scalar without ``dim``; with it masked if ``x`` is, and unspecified where no rank
        has a specified entry. Half-precision values are added in float32.

    Gradient:
        The sum over the ranks of incoming gradients, at specified entries, exactly 0 elsewhere: if every rank computes
        the same loss, W times that of one process, which averaging corrects. ``"summed"`` divides by W beforehand.
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
    total, number, wanted = _totals(x, dim, keepdim, dtype, group, gradients, "sum")
    return _result(total.to(wanted), number, x, dim, 0)


def mean(
    x: Masked,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    group: Any = None,
    gradients: Gradients = "averaged",
) -> Any:
    r"""Mean of the specified entries of all ranks, each counted once: :math:`\sum_r \sum_i x^{(r)}_i / \sum_r n^{(r)}`.

    The mean of the ranks' means differs if they have different numbers of entries.

    Args:
        x: as in :func:`maskgrad.distributed.sum`.
        dim: dimensions to reduce, besides the ranks; None: all.
        keepdim: keep them with size 1.
        dtype: of the result; None: that of ``x``.
        group: a process group of any backend; None: the default one.
        gradients: as in :func:`maskgrad.distributed.sum`.

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
    total, number, wanted = _totals(x, dim, keepdim, dtype, group, gradients, "mean")
    divisor = number.clamp(min=1) if isinstance(x, MaskedTensor) else number
    return _result((total / divisor).to(wanted), number, x, dim, math.nan)


def var(
    x: Masked,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    correction: float = 1,
    group: Any = None,
    gradients: Gradients = "averaged",
) -> Any:
    r"""Variance of the specified entries of all ranks, :math:`\sum (x - \bar x)^2 / (n - c)`, for n entries in total.

    Args:
        x: as in :func:`maskgrad.distributed.sum`.
        dim: dimensions to reduce, besides the ranks; None: all.
        keepdim: keep them with size 1.
        correction: the c above.
        group: a process group of any backend; None: the default one.
        gradients: as in :func:`maskgrad.distributed.sum`.

    Returns:
        As :func:`maskgrad.distributed.mean`; unspecified if there are no more entries than ``correction``, or NaN
        for a scalar. Two passes, the second over deviations from the common mean.

    Gradient:
        :math:`2 (x_i - \bar x) / (n - c)` times that of :func:`maskgrad.distributed.sum`.

    Raises:
        As :func:`maskgrad.distributed.mean`.

    Dense equivalent: ``x[mask].var()`` of the joint batch.

    Example:
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> mg.distributed.var(mg.from_nan(torch.tensor([1., float("nan"), 3.])))
        tensor(2.)
        >>> torch.distributed.destroy_process_group()

    Source: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983.
    """
    variance, enough = _variance(x, dim, keepdim, correction, group, gradients)
    return _result(variance, enough, x, dim, math.nan)


def std(
    x: Masked,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    correction: float = 1,
    group: Any = None,
    gradients: Gradients = "averaged",
) -> Any:
    r"""Standard deviation of the specified entries of all ranks: the square root of :func:`maskgrad.distributed.var`.

    Args:
        x: as in :func:`maskgrad.distributed.var`.
        dim: dimensions to reduce, besides the ranks; None: all.
        keepdim: keep them with size 1.
        correction: subtracted from the number of entries.
        group: a process group of any backend; None: the default one.
        gradients: as in :func:`maskgrad.distributed.sum`.

    Returns:
        As :func:`maskgrad.distributed.var`.

    Gradient:
        :math:`(x_i - \bar x) / ((n - c) s)` times that of :func:`maskgrad.distributed.sum`.

    Raises:
        As :func:`maskgrad.distributed.mean`.

    Dense equivalent: ``x[mask].std()`` of the joint batch.

    Example:
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> mg.distributed.std(torch.tensor([1., 2., 3.]))
        tensor(1.)
        >>> torch.distributed.destroy_process_group()

    Source: as :func:`maskgrad.distributed.var`.
    """
    variance, enough = _variance(x, dim, keepdim, correction, group, gradients)
    if isinstance(x, MaskedTensor):
        return _result(root(Entries(variance, enough)).values, enough, x, dim, math.nan)
    return torch.sqrt(variance)


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
        _check(x, "count", "averaged")
        number = _number(x, dim, keepdim)
    return global_sums(ranks, [number], "averaged", postponed.error)[0]


def _totals(
    x: Masked, dim: Dim, keepdim: bool, dtype: torch.dtype | None, group: Any, gradients: Gradients, what: str
) -> tuple[Tensor, Tensor, torch.dtype]:
    """The sum of the entries of all ranks, their number, and the dtype of the result."""
    ranks = ProcessGroup(group, what)
    total = number = torch.zeros(())
    wanted = torch.float32
    with Postponed() as postponed:
        _check(x, what, gradients)
        wide = _wide(x, dtype)
        wanted = dtype or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else wide)
        added = x.sum(dim, keepdim, dtype=wide)
        total = added.filled(0) if isinstance(added, MaskedTensor) else added
        number = _number(x, dim, keepdim)
    total, number = global_sums(ranks, [total, number], gradients, postponed.error)
    return total, number, wanted


def _variance(
    x: Masked, dim: Dim, keepdim: bool, correction: float, group: Any, gradients: Gradients
) -> tuple[Tensor, Tensor]:
    """The variance over all ranks, and where there are more entries than the correction."""
    centre = mean(x, dim, keepdim=True, dtype=_wide(x, None), group=group, gradients=gradients)
    plain = centre.filled(0) if isinstance(centre, MaskedTensor) else centre
    deviation = x.to(plain.dtype) - plain
    square = deviation * deviation if not x.dtype.is_complex else deviation.abs() ** 2
    total, number, _ = _totals(square, dim, keepdim, None, group, gradients, "var")
    wanted = x.dtype.to_real() if x.dtype.is_complex else x.dtype
    enough = number > max(correction, 0)
    if isinstance(x, MaskedTensor):  # no estimate from too few entries, and no division
        variance = torch.where(enough, total, 0) / torch.where(enough, number - correction, 1)
    else:
        variance = total / (number - correction).clamp(min=0)
    return variance.to(wanted), enough


def _check(x: object, what: str, gradients: str) -> None:
    if not isinstance(x, (Tensor, MaskedTensor)):
        raise TypeError(f"{what}: x must be a tensor or a MaskedTensor, found {type(x).__name__}")
    if isinstance(x, Tensor) and x.layout is not torch.strided:
        raise TypeError(
            f"{what}: x must be a strided tensor or a MaskedTensor, found layout {x.layout}; mg.from_sparse(x) takes "
            "the stored entries, x.to_dense() all entries"
        )
    if what in ("mean", "var") and not (x.dtype.is_floating_point or x.dtype.is_complex):
        raise TypeError(f"{what}: x has dtype {x.dtype}; convert it to a floating-point or complex one")
    check_choice("gradients", gradients, ("averaged", "summed"))


def _wide(x: Masked, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype in which entries are added up."""
    chosen = dtype or x.dtype
    if chosen.is_floating_point or chosen.is_complex:
        return torch.promote_types(chosen, torch.float32)
    return torch.int64


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
