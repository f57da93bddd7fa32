"""Gradients that ``.grad`` cannot hold: attached to a parameter, read by ``mg.optim``."""

from __future__ import annotations

from torch import Tensor

from maskgrad.gradients.attached import AnyGradient, current_gradient, keep_attached
from maskgrad.gradients.gradient import check_fits

__all__ = ["attach_gradient", "attached_gradient", "current_gradient"]


def attached_gradient(param: Tensor) -> AnyGradient | None:
    """The gradient that a step of ``mg.optim`` uses: what was attached, as it was given, or ``.grad``; None if none.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> mg.attach_gradient(p, mg.masked(torch.ones(3), torch.tensor([True, False, False])))
        >>> mg.optim.attached_gradient(p)
        masked([1., --, --])
    """
    return current_gradient(param, "the parameter")


def attach_gradient(param: Tensor, masked: AnyGradient | None) -> None:
    """Give a parameter a gradient of any kind, as ``param.grad = ...`` does for dense and COO ones.

    The optimizers of ``mg.optim`` update the specified entries, and only those. It is an assignment to ``.grad``,
    where PyTorch's tools see it: a dense or COO tensor as it is, others in a tensor of a kind of their own. Norms,
    checks and scaling (``torch.nn.utils.clip_grad_norm_``, ``torch.amp.GradScaler``) and ``zero_grad()`` of a model
    are right for it, entries without a gradient counting as 0; everything else refuses it, steps of ``torch.optim``
    before anything has changed. ``param.grad.to_dense()`` is the dense one. (On PyTorch/XLA, which has no such
    tensors, it hangs on the parameter, ``.grad`` is None, and an optimizer of ``mg.optim`` is needed throughout.)

    Args:
        param: the parameter, any shape.
        masked: a MaskedTensor, a :class:`maskgrad.PaddedRows`, or a strided, COO, CSR, CSC, BSR or BSC tensor, of
            the parameter's shape and device; None removes. It is detached, not copied.

    Gradient:
        None flows through; it is one.

    Raises:
        TypeError: ``masked`` is of an unknown kind or layout, or of a dtype that the parameter cannot take.
        ValueError: its shape or device is not the parameter's. (Indices are looked at by the step.)

    Dense equivalent: ``param.grad = gradient``.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> mg.attach_gradient(p, mg.masked(torch.tensor([1., 9., 1.]), torch.tensor([True, False, False])))
        >>> mg.optim.SGD([p], lr=0.5).step()
        >>> p.data
        tensor([0.5000, 1.0000, 1.0000])

    Source: PyTorch refuses ``p.grad = csr`` ("data of a different type") for a dense parameter.
    """
    if masked is not None:
        check_fits(param, masked, "gradient of the parameter")
    if masked is None:
        param.grad = None
    keep_attached(param, masked)
