"""When shapes differ, sums are taken in another order: how far results may be apart then."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.doctor.leaks import Difference
from maskgrad.doctor.trial import Outcome

__all__ = ["RELATIVE", "apart", "between"]

#: relative to the largest entry
RELATIVE = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 4e-2}
#: entries of a gradient that are this much smaller than the largest gradient of the step may be rounding
_SMALL = 1e-1


def apart(a: Tensor, b: Tensor, scale: float = 0.0) -> bool:
    """Whether two tensors of one shape differ by more than rounding; NaN equals NaN."""
    if not a.numel():
        return False
    relative = RELATIVE.get(a.dtype, 1e-4)
    a, b = a.double(), b.double()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return True
    finite = a.isfinite()
    a, b = a[finite], b[finite]
    if not a.numel():
        return False
    size = max(float(a.abs().max()), float(b.abs().max()), scale)
    return float((a - b).abs().max()) > relative * size


def between(before: Outcome, after: Outcome) -> Difference:
    """Loss and gradients of two runs; a gradient that is absent counts as zero."""
    difference = Difference()
    if (
        before.loss is not None
        and after.loss is not None
        and apart(before.loss.reshape(()), after.loss.reshape(()))
    ):
        difference.loss = (float(before.loss), float(after.loss))
    dense = [{name: _dense(grad) for name, grad in outcome.gradients.items()} for outcome in (before, after)]
    sizes = [float(grad.abs().max()) for grads in dense for grad in grads.values() if grad.numel()]
    scale = _SMALL * max((size for size in sizes if size == size), default=0.0)
    for name in dense[0].keys() | dense[1].keys():
        first, second = (grads.get(name) for grads in dense)
        if first is None or second is None:
            first = torch.zeros_like(second) if first is None and second is not None else first
            second = torch.zeros_like(first) if second is None and first is not None else second
        if first is None or second is None or first.shape != second.shape:
            continue  # the gradient of the batch itself, which has another shape now
        if apart(first, second, scale):
            difference.gradients[name] = float((first.double() - second.double()).abs().max())
    return difference


def _dense(gradient: Tensor) -> Tensor:
    return gradient if gradient.layout is torch.strided else gradient.to_dense()
