"""Identities in the forward pass that mask or reverse the gradient."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor

from maskgrad.gradients.function import Function
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.creation import plain_mask
from maskgrad.masked_tensor.tensor import stored_of
from maskgrad.patterns import JaggedPattern
from maskgrad.patterns.mask_arguments import check_mask
from maskgrad.patterns.stored import read_places
from maskgrad.semantics.jagged.rows import at_rows

__all__ = ["mask_gradient", "reverse_gradient"]

_Operand = TypeVar("_Operand", Tensor, MaskedTensor)


def mask_gradient(x: _Operand, mask: Tensor | MaskedTensor) -> _Operand:
    r"""Return ``x`` with a gradient that passes only where ``mask`` is True.

    :math:`y = x`, and :math:`\partial L/\partial x = \partial L/\partial y` where the mask is True, 0 elsewhere:
    selected, not multiplied, so that a NaN or an infinity in the gradient does not pass either.

    Args:
        x: strided tensor of any shape and dtype, or MaskedTensor of any layout.
        mask: Boolean tensor (or integers 0 and 1) with as many dimensions as ``x``, size 1 where it repeats; True = the
            gradient passes. A MaskedTensor, such as ``x > 0``, must be specified wherever ``x`` is.

    Returns:
        ``x``'s values in new memory, with the pattern of ``x`` if it has one.
        Gradient: of ``y`` where ``mask`` is True, exactly 0 elsewhere; the same for tangents in forward mode and for
        derivatives of any order. Other uses of ``x`` are not affected.

    Raises:
        TypeError: ``x`` is not a tensor or is sparse, or ``mask`` is not one of Booleans or integers.
        ValueError: ``mask`` contains other integers, has fewer dimensions than ``x``, does not broadcast to it, or is
            on another device.

    Dense equivalent: ``torch.where(mask, x, x.detach())``.

    Example:
        >>> x = torch.tensor([0.0, 4.0], requires_grad=True)
        >>> mg.mask_gradient(x, x > 0).sqrt().sum().backward()
        >>> x.grad
        tensor([0.0000, 0.2500])
    """
    values = _values_of(x, "mask_gradient")
    passes = check_mask(plain_mask(mask, x, "the gradient passes"), x.shape, values.device)
    if not isinstance(x, MaskedTensor):
        return torch.where(passes, x, x.detach())
    stored = stored_of(x)
    if isinstance(x._pattern, JaggedPattern):
        passes = at_rows(passes, x._pattern)
    elif stored is not None:
        passes = stored.pattern.gathered(read_places(passes, stored.pattern.coordinates()))
    return MaskedTensor(torch.where(passes, values, values.detach()), x._pattern)


class _Reversed(Function):
    pattern = "intersection"

    @staticmethod
    def forward(x: Tensor, scale: Any) -> Tensor:  # noqa: ARG004
        return x.clone()  # views returned by custom functions cannot be modified, as by ReLU(inplace=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        scale = inputs[1]
        ctx.constant = None if isinstance(scale, Tensor) else scale
        if isinstance(scale, Tensor):
            ctx.save_for_backward(scale)
            ctx.save_for_forward(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _scaled(ctx, gradient), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: Any) -> Tensor:
        return _scaled(ctx, tangent)


def _scaled(ctx: Any, gradient: Tensor) -> Tensor:
    scale = ctx.saved_tensors[0] if ctx.constant is None else ctx.constant
    reversed_: Tensor = gradient * -scale
    return reversed_.to(gradient.dtype)


def reverse_gradient(x: _Operand, scale: float | Tensor = 1.0) -> _Operand:
    r"""Return ``x`` with a gradient that passes with the opposite sign.

    :math:`y = x`, and :math:`\partial L/\partial x = -s\,\partial L/\partial y`: later layers minimise the loss,
    earlier ones maximise it.

    Args:
        x: floating-point or complex strided tensor of any shape, or MaskedTensor of any layout.
        scale: :math:`s`. A number, or a tensor that broadcasts to the shape of ``x`` and does not require a gradient. A
            strength that follows a schedule should be a tensor: under ``torch.compile`` a new number may recompile.

    Returns:
        ``x``'s values in new memory, with the pattern of ``x`` if it has one.
        Gradient: multiplied by ``-scale``; exactly 0 at unspecified entries. The same for tangents in forward mode.
        Differentiable again: second derivatives pass the reversal twice.

    Raises:
        TypeError: ``x`` is not a tensor or is sparse, or ``scale`` is neither number nor tensor.
        ValueError: ``scale`` is not finite, does not broadcast to ``x``, or requires a gradient.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> mg.reverse_gradient(x, scale=0.5).sum().backward()
        >>> x.grad
        tensor([-0.5000, -0.5000])

    Source: Ganin and Lempitsky, Unsupervised Domain Adaptation by Backpropagation, 2015,
    https://arxiv.org/abs/1409.7495.
    """
    _values_of(x, "reverse_gradient")
    _check_scale(scale, x.shape)
    result: _Operand = _Reversed.apply(x, scale)
    return result


def _values_of(x: object, function: str) -> Tensor:
    if isinstance(x, MaskedTensor):
        return x._values
    if not isinstance(x, Tensor):
        raise TypeError(f"{function}: x must be a torch.Tensor or a MaskedTensor, found {type(x).__name__}")
    if x.layout != torch.strided:
        raise TypeError(
            f"{function}: x must be a strided tensor or a MaskedTensor, found layout {x.layout}; "
            "use mg.from_sparse(x)"
        )
    return x


def _check_scale(scale: object, shape: torch.Size) -> None:
    if isinstance(scale, Tensor):
        if scale.requires_grad:
            raise ValueError(
                "scale must not require grad, there is no derivative with respect to it; use scale.detach()"
            )
        lacking = len(shape) - scale.ndim
        if lacking < 0 or any(s not in (1, n) for s, n in zip(scale.shape, shape[lacking:], strict=True)):
            raise ValueError(
                f"scale must broadcast to the shape of x, {tuple(shape)}, found shape {tuple(scale.shape)}"
            )
    elif not isinstance(scale, (int, float)) or isinstance(scale, bool):
        raise TypeError(f"scale must be a number or a torch.Tensor, found {type(scale).__name__}")
    elif not math.isfinite(scale):
        raise ValueError(f"scale must be finite, found {scale}")
