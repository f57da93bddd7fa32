"""Norms and clipping of dense and sparse gradients together.

A sparse gradient lists contributions, and several may belong to one entry: they are merged before anything nonlinear
happens, halves in float32. The cost follows the entries that are listed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor, from_sparse
from maskgrad.masked_tensor.tensor import stored_of

__all__ = ["clip_grad_norm_", "clip_grad_value_", "grad_norm"]

Parameters = Tensor | Iterable[Tensor]


def _with_gradients(parameters: Parameters) -> list[Tensor]:
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for parameter in listed:
        if not isinstance(parameter, Tensor):
            raise TypeError(f"parameters must be tensors, found {type(parameter).__name__}")
    return [p for p in listed if p.grad is not None]


def _merge(gradient: Tensor) -> tuple[MaskedTensor | None, Tensor]:
    """The gradient as stored entries, each place once, and their values; a dense one as it is."""
    if gradient.layout == torch.strided:
        return None, gradient.detach()
    merged = from_sparse(gradient.detach())
    stored = stored_of(merged)
    assert stored is not None
    return merged, stored.values


def _rewritten(gradient: Tensor, merged: MaskedTensor | None, values: Tensor) -> Tensor:
    if merged is None:
        gradient.copy_(values)
        return gradient
    rewritten: Tensor = MaskedTensor(values, merged._pattern).to_sparse_tensor()
    return rewritten


def grad_norm(parameters: Parameters, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Tensor:
    r"""Norm of all gradients taken together, :math:`(\sum |g_i|^p)^{1/p}`, in at least float32.

    Args:
        parameters: parameters, or one; those without a gradient are left out. Gradients may be dense or sparse.
        norm_type: the order p, positive or inf.
        error_if_nonfinite: raise if the norm is NaN or infinite.

    Returns:
        0-dim tensor; 0 if there is no gradient. Gradient: none.

    Raises:
        TypeError: ``parameters`` holds something else than tensors.
        ValueError: ``norm_type`` is not positive.
        RuntimeError: the norm is not finite, and ``error_if_nonfinite``.
        IndexError: an index of a sparse gradient lies outside its parameter.

    Dense equivalent: ``torch.nn.utils.get_total_norm``.

    Example:
        >>> w = torch.nn.Parameter(torch.zeros(5))
        >>> w.grad = torch.sparse_coo_tensor([[1, 1]], torch.ones(2), (5,))
        >>> mg.grad_norm([w])
        tensor(2.)

    Source: ``torch.nn.utils.get_total_norm``.
    """
    return _norm([_merge(p.grad)[1] for p in _with_gradients(parameters)], norm_type, error_if_nonfinite)  # type: ignore[arg-type]


def _norm(values: list[Tensor], norm_type: float, error_if_nonfinite: bool) -> Tensor:
    order = float(norm_type)
    if not order > 0:
        raise ValueError(f"norm_type must be positive or inf, found {norm_type}")
    if not values:
        return torch.tensor(0.0)
    norms = []
    for part in values:
        wide = part.float() if part.dtype in (torch.float16, torch.bfloat16) else part
        if wide.numel():
            norms.append(torch.linalg.vector_norm(wide, order).to(values[0].device))
    total = torch.linalg.vector_norm(torch.stack(norms), order) if norms else torch.tensor(0.0)
    if error_if_nonfinite and not bool(torch.isfinite(total)):
        raise RuntimeError(
            f"The total norm of order {order} for gradients from `parameters` is non-finite, so it cannot be clipped. "
            "To disable this error and scale the gradients by the non-finite norm anyway, set error_if_nonfinite=False"
        )
    return total


@torch.no_grad()
def clip_grad_norm_(
    parameters: Parameters,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: Any = None,
) -> Tensor:
    """Scale all gradients so that their common norm is at most ``max_norm``; sparse ones stay sparse.

    Args:
        parameters: parameters, or one; those without a gradient are left out.
        max_norm: the largest norm that is left alone.
        norm_type: order of the norm, positive or inf.
        error_if_nonfinite: raise if the norm is NaN or infinite; nothing has been changed then.
        foreach: accepted for PyTorch's sake; no effect.

    Returns:
        The norm before clipping, a 0-dim tensor.

    Raises:
        TypeError, ValueError, RuntimeError, IndexError: as :func:`grad_norm`.
        ValueError: ``max_norm`` is negative or NaN.

    Dense equivalent: ``torch.nn.utils.clip_grad_norm_``.

    Example:
        >>> w = torch.nn.Parameter(torch.zeros(5))
        >>> w.grad = torch.sparse_coo_tensor([[1, 1]], torch.ones(2), (5,))
        >>> mg.clip_grad_norm_([w], 1.0), w.grad.to_dense()[1].item()
        (tensor(2.), 0.9999995231628418)

    Source: ``torch.nn.utils.clip_grad_norm_``.
    """
    limit = float(max_norm)
    if math.isnan(limit) or limit < 0:
        raise ValueError(f"max_norm must be at least 0, found {max_norm}")
    owners = _with_gradients(parameters)
    merged = [_merge(p.grad) for p in owners]  # type: ignore[arg-type]
    total = _norm([values for _, values in merged], norm_type, error_if_nonfinite)
    factor = (limit / (total + 1e-6)).clamp(max=1.0)
    for p, (pattern, values) in zip(owners, merged, strict=True):
        scaled = (values * factor.to(values.device)).to(values.dtype)
        p.grad = _rewritten(p.grad, pattern, scaled)  # type: ignore[arg-type]
    return total


@torch.no_grad()
def clip_grad_value_(parameters: Parameters, clip_value: float, foreach: Any = None) -> None:
    """Limit every entry of every gradient to ``[-clip_value, clip_value]``, duplicates merged first.

    Args:
        parameters: parameters, or one; those without a gradient are left out.
        clip_value: the largest magnitude that is left alone.
        foreach: accepted for PyTorch's sake; no effect.

    Raises:
        TypeError: ``parameters`` holds something else than tensors.
        ValueError: ``clip_value`` is negative or NaN.
        IndexError: an index of a sparse gradient lies outside its parameter.

    Dense equivalent: ``torch.nn.utils.clip_grad_value_``.

    Example:
        >>> w = torch.nn.Parameter(torch.zeros(3))
        >>> w.grad = torch.sparse_coo_tensor([[1, 1]], torch.ones(2), (3,))
        >>> mg.clip_grad_value_([w], 1.5)
        >>> w.grad.to_dense()
        tensor([0.0000, 1.5000, 0.0000])

    Source: ``torch.nn.utils.clip_grad_value_``.
    """
    limit = float(clip_value)
    if math.isnan(limit) or limit < 0:
        raise ValueError(f"clip_value must be at least 0, found {clip_value}")
    owners = _with_gradients(parameters)
    merged = [_merge(p.grad) for p in owners]  # type: ignore[arg-type]
    for p, (pattern, values) in zip(owners, merged, strict=True):
        p.grad = _rewritten(p.grad, pattern, values.clamp(-limit, limit))  # type: ignore[arg-type]
