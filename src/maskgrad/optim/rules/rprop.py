"""The rule of Rprop."""

from __future__ import annotations

from torch import Tensor, where

__all__ = ["rprop_"]


def rprop_(
    param: Tensor,
    grad: Tensor,
    prev: Tensor,
    step_size: Tensor,
    *,
    eta_minus: float,
    eta_plus: float,
    step_size_min: float,
    step_size_max: float,
    maximize: bool,
) -> None:
    r"""One Rprop step: by an entry's own step size, whatever the size of its gradient.

    The step size grows by ``eta_plus`` while the gradient keeps its sign. When the sign changes it shrinks by
    ``eta_minus``, and the entry rests for this step.

    .. math:: p \leftarrow p - s\; \mathrm{sign}(g)

    Source: Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP algorithm",
    ICNN 1993.
    """
    if maximize:
        grad = grad.neg()
    agreement = grad.mul(prev).sign_()
    # Nested so that NaN stays NaN.
    factor = where(agreement.gt(0), eta_plus, where(agreement.lt(0), eta_minus, agreement))
    step_size.mul_(where(agreement.eq(0), 1, factor)).clamp_(step_size_min, step_size_max)
    grad = where(agreement.lt(0), 0, grad)
    param.addcmul_(grad.sign(), step_size, value=-1)
    prev.copy_(grad)
