"""The gradient that a parameter has in ``.grad``: a tensor of torch, or a masked one (MaskedGradient)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # imports the compiler only when it is called

from maskgrad.gradients.gradient import AnyGradient
from maskgrad.gradients.masked_grad import MaskedGradient

__all__ = [
    "AnyGradient",
    "attached_gradient",
    "current_gradient",
    "grad_dtype",
    "keep_attached",
    "replace_gradient",
    "set_grad_dtype",
]

_ATTRIBUTE = "_maskgrad_gradient"
_HAS_GRAD_DTYPE = hasattr(Tensor, "grad_dtype")  # not in PyTorch 2.9, which PyTorch/XLA needs


def attached_gradient(param: Tensor) -> AnyGradient | None:
    """The masked gradient of ``param``; None if it has none or a plain one."""
    gradient = param.grad
    if type(gradient) is MaskedGradient:
        return gradient.gradient  # type: ignore[no-any-return]
    attached: AnyGradient | None = getattr(param, _ATTRIBUTE, None)
    return attached


def keep_attached(param: Tensor, gradient: AnyGradient | None) -> None:
    """Attach a gradient that is known to fit, detached; None removes it.

    In ``.grad`` everybody sees it: dense or COO as it is, others as :class:`MaskedGradient`. PyTorch/XLA has no such
    tensors; there it is an attribute of the parameter.
    """
    if hasattr(param, _ATTRIBUTE):
        delattr(param, _ATTRIBUTE)
    if gradient is None:
        if type(param.grad) is MaskedGradient:
            param.grad = None
        return
    gradient = gradient.detach()
    if grad_dtype(param) not in (None, gradient.dtype):
        param.grad = None
        set_grad_dtype(param, gradient.dtype)
    if param.device.type == "xla" or grad_dtype(param) not in (None, gradient.dtype):
        setattr(param, _ATTRIBUTE, gradient)
    elif isinstance(gradient, Tensor) and gradient.layout in (torch.strided, torch.sparse_coo):
        param.grad = gradient
    else:
        (_hold_uncompiled if torch.compiler.is_compiling() else _hold)(param, gradient)


def _hold(param: Tensor, gradient: AnyGradient) -> None:
    param.grad = MaskedGradient(gradient)


# Not always this one: called in eager mode it would import the compiler, which takes seconds.
_hold_uncompiled = _disable_dynamo(_hold)


def current_gradient(param: Tensor, name: str = "a parameter") -> AnyGradient | None:
    """The gradient a step uses: the attached one, or ``.grad``; None if there is none, ValueError if there are both."""
    gradient = param.grad
    if type(gradient) is MaskedGradient:
        return gradient.gradient  # type: ignore[no-any-return]
    attached = attached_gradient(param)
    if attached is None:
        return gradient
    if gradient is not None:
        raise ValueError(
            f"{name} has an attached gradient and a .grad; it is ambiguous which one is meant. Remove one: "
            "mg.attach_gradient(param, None) or param.grad = None"
        )
    return attached


def replace_gradient(param: Tensor, gradient: AnyGradient) -> None:
    """Put ``gradient`` in the place of the present one, in ``.grad`` or attached.

    ``.grad`` must have ``param.grad_dtype``, which cannot be changed while there is a gradient; hence the order. Where
    there is no ``grad_dtype``, what ``.grad`` cannot hold is attached.
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
