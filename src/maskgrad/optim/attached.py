"""Gradients that ``.grad`` cannot hold: attached to a parameter, read by ``mg.optim``."""

from __future__ import annotations

from torch import Tensor

from maskgrad.gradients.attached import AnyGradient, attached_gradient, current_gradient, keep_attached
from maskgrad.optim.gradients import check_gradient

__all__ = ["attach_gradient", "attached_gradient", "current_gradient"]


def attach_gradient(param: Tensor, masked: AnyGradient | None) -> None:
    """Give a parameter a gradient of any kind, as ``param.grad = ...`` does for dense and COO ones.

    The optimizers of ``mg.optim`` update the specified entries, and only those. Like an assignment to
    ``.grad``, it replaces what was attached before; ``zero_grad()`` of an optimizer of ``mg.optim``, or
    ``None``, removes it. A step refuses a parameter that has both an attached gradient and a ``.grad``.

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
        check_gradient(param, masked, "the parameter")
    keep_attached(param, masked)
