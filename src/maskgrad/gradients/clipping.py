"""Norms and clipping of dense, sparse and masked gradients.

Duplicates are merged first, half precision in float32. The cost depends on the listed entries. Entries that
``mg.train_only`` freezes do not count.
"""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.gradients.attached import current_gradient, replace_gradient
from maskgrad.gradients.gradient import AnyGradient, Gradient, is_strided, read
from maskgrad.gradients.train_only import trained_entries
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.semantics.entries import HALVES

__all__ = ["clip_grad_norm_", "clip_grad_value_", "grad_norm", "limit_of", "listed_parameters"]

Parameters = Tensor | MaskedTensor | Iterable[Tensor | MaskedTensor]


class _Owner(NamedTuple):
    """A parameter with its gradient, rows of which are merged, in at least float32."""

    param: Tensor
    gradient: AnyGradient
    part: Gradient


def grad_norm(
    parameters: Parameters,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    r"""Return the norm of all gradients together, :math:`(\sum |g_i|^p)^{1/p}`, in at least float32.

    Args:
        parameters: parameters, or one; leaf MaskedTensors may be among them. Those without a gradient are ignored.
            Gradients may be dense, sparse in any layout, or attached with :func:`maskgrad.attach_gradient`.
        norm_type: the order p, a number or inf; what ``torch.linalg.vector_norm`` takes.
        error_if_nonfinite: raise if the norm is NaN or infinite.
        foreach: as in PyTorch: True forces the batched implementation, False the other.

    Returns:
        0-dim tensor; 0 if there is no gradient. Gradient: none.

    Only specified entries count, with duplicates merged, except those frozen by :func:`maskgrad.train_only`.

    Raises:
        TypeError: ``parameters`` contains something other than tensors.
        ValueError: ``norm_type`` is NaN, or a parameter has an attached gradient and a ``.grad``.
        RuntimeError: the norm is not finite, and ``error_if_nonfinite``.
        IndexError: an index of a sparse gradient lies outside its parameter.

    Dense equivalent: ``torch.nn.utils.get_total_norm``, which takes the gradients themselves.

    Example:
        >>> w = torch.nn.Parameter(torch.zeros(5))
        >>> w.grad = torch.sparse_coo_tensor([[1, 1]], torch.ones(2), (5,))
        >>> mg.grad_norm([w])
        tensor(2.)

    Source: ``torch.nn.utils.get_total_norm``.
    """
    return _norm(_listed(parameters), norm_type, error_if_nonfinite, foreach)


@torch.no_grad()
def clip_grad_norm_(
    parameters: Parameters,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    r"""Scale all gradients so that their total norm is at most ``max_norm``; each keeps its layout.

    .. math:: g \leftarrow g \cdot \min\left(1, \frac{\text{max\_norm}}{\text{norm} + 10^{-6}}\right)

    Args:
        parameters: parameters, or one; leaf MaskedTensors may be among them. Those without a gradient are ignored.
        max_norm: the largest norm that is not clipped.
        norm_type: the order of the norm, as in :func:`maskgrad.grad_norm`.
        error_if_nonfinite: raise if the norm is NaN or infinite; nothing is changed then.
        foreach: as in :func:`maskgrad.grad_norm`.

    Returns:
        The norm before clipping, a 0-dim tensor.

    Dense gradients are changed in place. Sparse ones are replaced by merged ones of the same layout, except in half
    precision, where sums might overflow: duplicates are scaled in place.

    Raises:
        TypeError, ValueError, RuntimeError, IndexError: as :func:`maskgrad.grad_norm`.
        ValueError: ``max_norm`` is negative or NaN.

    Dense equivalent: ``torch.nn.utils.clip_grad_norm_``.

    Example:
        >>> w = torch.nn.Parameter(torch.zeros(5))
        >>> w.grad = torch.sparse_coo_tensor([[1, 1]], torch.ones(2), (5,))
        >>> mg.clip_grad_norm_([w], 1.0), w.grad.to_dense()[1].item()
        (tensor(2.), 0.9999995231628418)

    Source: ``torch.nn.utils.clip_grad_norm_``.
    """
    limit = limit_of("max_norm", max_norm)
    if isinstance(parameters, types.GeneratorType):
        parameters = list(parameters)
        if not parameters:
            warnings.warn(
                "`parameters` is an empty generator, no gradient clipping will occur.", stacklevel=3
            )
    owners = _listed(parameters)
    total = _norm(owners, norm_type, error_if_nonfinite, foreach)
    dense = [one.param for one in owners if is_strided(one.gradient)]
    torch.nn.utils.clip_grads_with_norm_(dense, limit, total, foreach=foreach)
    factor = (limit / (total + 1e-6)).clamp(max=1.0)
    for param, gradient, part in owners:
        if not is_strided(gradient):
            replace_gradient(param, _scaled(gradient, part, factor.to(gradient.device)))
    return total


@torch.no_grad()
def clip_grad_value_(parameters: Parameters, clip_value: float, foreach: bool | None = None) -> None:
    """Limit every entry of every gradient to ``[-clip_value, clip_value]``, duplicates merged first.

    Args:
        parameters: parameters, or one; leaf MaskedTensors may be among them. Those without a gradient are ignored.
        clip_value: the largest magnitude that is not clipped.
        foreach: as in :func:`maskgrad.grad_norm`.

    Raises:
        TypeError: ``parameters`` contains something other than tensors, or a gradient is complex.
        ValueError: ``clip_value`` is negative or NaN, or a parameter has an attached gradient and a ``.grad``.
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
    limit = limit_of("clip_value", clip_value)
    owners = _listed(parameters)
    for _, gradient, _ in owners:
        if gradient.dtype.is_complex:
            raise TypeError(
                f"a gradient has dtype {gradient.dtype}; complex numbers have no order, use mg.clip_grad_norm_"
            )
    dense = [one.param for one in owners if is_strided(one.gradient)]
    if dense:
        torch.nn.utils.clip_grad_value_(dense, limit, foreach=foreach)
    for param, gradient, part in owners:
        # An unclipped sum may overflow half precision, but is never written.
        if is_strided(gradient) or (gradient.dtype in HALVES and not bool((part.values.abs() > limit).any())):
            continue
        bound = min(limit, torch.finfo(gradient.dtype).max)
        limited = part.values.clamp(-bound, bound).to(gradient.dtype)
        replace_gradient(param, part.with_values(limited).like(gradient))


def listed_parameters(given: Any) -> list[Tensor | MaskedTensor]:
    """Return parameters as a list; TypeError for what is none."""
    if isinstance(given, (Tensor, MaskedTensor)):
        return [given]
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for one in listed:
        if not isinstance(one, (Tensor, MaskedTensor)):
            found = (
                type(one).__name__ if one is given else f"{type(one).__name__} in a {type(given).__name__}"
            )
            raise TypeError(f"parameters must be tensors, found {found}; write model.parameters()")
    return listed


def limit_of(name: str, value: float) -> float:
    """Return a limit as a float; raise a ValueError if it is negative or NaN."""
    limit = float(value)
    if math.isnan(limit) or limit < 0:
        raise ValueError(f"{name} must be at least 0, found {value}")
    return limit


def _listed(parameters: Parameters) -> list[_Owner]:
    """Return parameters with their gradients; for a leaf MaskedTensor its values, which are trained."""
    owners = []
    for parameter in listed_parameters(parameters):
        param = parameter._values if isinstance(parameter, MaskedTensor) else parameter
        gradient = current_gradient(param)
        if gradient is not None:
            part = read(gradient, "a gradient")
            owners.append(_Owner(param, gradient, part if part.rows is None else part.wide().merged()))
    return owners


def _norm(owners: list[_Owner], norm_type: float, error_if_nonfinite: bool, foreach: bool | None) -> Tensor:
    order = float(norm_type)
    if math.isnan(order):
        raise ValueError("norm_type must be a number or inf, found nan")
    parts = [_what_counts(one, order) for one in owners]
    present = [values for values in parts if values.numel()]  # an empty tensor has no largest entry
    if not present:
        return torch.zeros((), device=parts[0].device if parts else None)
    return torch.nn.utils.get_total_norm(present, order, error_if_nonfinite, foreach)


def _what_counts(one: _Owner, order: float) -> Tensor:
    """Return the entries for a norm, or their norm already, in at least float32."""
    values = one.part.values
    counted = one.part.counted(trained_entries(one.param))
    if counted is not None:
        # Replacing ignored entries by zero does not change a sum, but would change a minimum.
        values = torch.where(counted, values, 0) if order > 0 else values[counted]
    if values.dtype not in HALVES or not values.numel():
        return values
    # A scalar instead of a wide copy, which would be twice as large as the gradient.
    norm: Tensor = torch.linalg.vector_norm(values, order, dtype=torch.float32)
    return norm


def _scaled(gradient: AnyGradient, part: Gradient, factor: Tensor) -> AnyGradient:
    if isinstance(gradient, Tensor) and gradient.layout is torch.sparse_coo and gradient.dtype in HALVES:
        contributions = (gradient._values().to(factor.dtype) * factor).to(gradient.dtype)
        return torch.sparse_coo_tensor(
            gradient._indices(),
            contributions,
            gradient.shape,
            is_coalesced=gradient.is_coalesced(),
            check_invariants=False,
        )
    return part.with_values((part.values * factor).to(gradient.dtype)).like(gradient)
