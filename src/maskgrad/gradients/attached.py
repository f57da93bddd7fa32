"""The gradient that a parameter has: ``.grad``, or one of a kind that ``.grad`` cannot hold, kept beside it."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.gradients.padded_rows import PaddedRows
from maskgrad.masked_tensor import MaskedTensor

__all__ = [
    "AnyGradient",
    "attached_gradient",
    "current_gradient",
    "grad_dtype",
    "gradient_or_none",
    "keep_attached",
    "replace_gradient",
    "set_grad_dtype",
]

AnyGradient = Tensor | MaskedTensor | PaddedRows

_ATTRIBUTE = "_maskgrad_gradient"
_HAS_GRAD_DTYPE = hasattr(Tensor, "grad_dtype")  # not in PyTorch 2.9, which PyTorch/XLA needs


def attached_gradient(param: Tensor) -> AnyGradient | None:
    """What :func:`maskgrad.attach_gradient` gave to ``param``, or None.

    Example:
        >>> mg.optim.attached_gradient(torch.nn.Parameter(torch.ones(3))) is None
        True
    """
    attached: AnyGradient | None = getattr(param, _ATTRIBUTE, None)
    return attached


def keep_attached(param: Tensor, gradient: AnyGradient | None) -> None:
    """Attach a gradient that is known to fit, detached; None removes what is attached."""
    if gradient is not None:
        setattr(param, _ATTRIBUTE, gradient.detach())
    elif hasattr(param, _ATTRIBUTE):
        delattr(param, _ATTRIBUTE)


def current_gradient(param: Tensor, name: str) -> AnyGradient | None:
    """The gradient a step uses: the attached one, or ``.grad``; both at once are refused, none is None."""
    attached = attached_gradient(param)
    if attached is None:
        return param.grad
    if param.grad is not None:
        raise ValueError(
            f"{name} has an attached gradient and a .grad; which one is meant cannot be known. Remove one: "
            "mg.attach_gradient(param, None) or param.grad = None"
        )
    return attached


def gradient_or_none(param: Tensor) -> AnyGradient | None:
    """:func:`current_gradient` for those who do not know the parameter by a name."""
    return current_gradient(param, "a parameter")


def replace_gradient(param: Tensor, gradient: AnyGradient) -> None:
    """Put ``gradient`` where the parameter's present one is, in ``.grad`` or attached.

    ``.grad`` refuses another dtype than ``param.grad_dtype``, and that cannot be changed while there is a
    gradient; hence the order. Where there is no ``grad_dtype``, what ``.grad`` cannot hold is attached.
    """
    if attached_gradient(param) is not None or not isinstance(gradient, Tensor):
        keep_attached(param, gradient)
        return
    if param.grad is None or param.grad.dtype is not gradient.dtype:
        param.grad = None
        set_grad_dtype(param, gradient.dtype)
        if grad_dtype(param) is not gradient.dtype:
            keep_attached(param, gradient)
            return
    param.grad = gradient


def grad_dtype(param: Tensor) -> torch.dtype | None:
    """The dtype in which ``param`` gathers its gradient; None if any will do."""
    dtype: torch.dtype | None = param.grad_dtype if _HAS_GRAD_DTYPE else param.dtype
    return dtype


def set_grad_dtype(param: Tensor, dtype: torch.dtype | None) -> None:
    """Let ``param``, which has no ``.grad`` now, gather its gradient in ``dtype``, if PyTorch can."""
    if _HAS_GRAD_DTYPE:
        param.grad_dtype = dtype
