"""One unscaling of an optimizer's gradients: look at all of them first, then check and write.

A dense gradient that stays in its dtype goes to PyTorch's kernel, in place. All others are multiplied and merged in
float32, checked as they will be seen by the optimizer, and only then put in the place of the old ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from maskgrad.gradients.attached import (
    attached_gradient,
    current_gradient,
    grad_dtype,
    keep_attached,
    replace_gradient,
    set_grad_dtype,
)
from maskgrad.gradients.gradient import AnyGradient, Gradient, is_half, read
from maskgrad.gradients.step_hooks import parameters_of
from maskgrad.gradients.train_only import trained_entries
from maskgrad.optim.optimizer import MaskedOptimizer

__all__ = [
    "OnDevices",
    "Unscaled",
    "Widened",
    "check_finite",
    "narrow_again",
    "read_and_unscale",
    "write_unscaled",
]


class OnDevices:
    """Copies of a 0-dim tensor on the devices that ask for one."""

    def __init__(self, master: Tensor) -> None:
        self.master = master
        self.copies: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """The copy on ``device``."""
        if device not in self.copies:
            self.copies[device] = self.master.to(device=device, non_blocking=True, copy=True)
        return self.copies[device]


@dataclass(frozen=True, slots=True)
class Unscaled:
    """A gradient that has been read, and unscaled on the side unless PyTorch's kernel is to do it in place."""

    param: Tensor
    gradient: AnyGradient
    merged: Gradient | None = None
    """Merged, unscaled, in the dtype to be written. None: to be unscaled in place."""
    trained: Tensor | None = None

    def checked(self) -> Tensor:
        """What must be finite, as real numbers."""
        if self.merged is None:
            assert isinstance(self.gradient, Tensor)
            return self.gradient
        counted = self.merged.counted(self.trained)
        values = self.merged.values
        values = values if counted is None else torch.where(counted, values, 0)
        return torch.view_as_real(values) if values.is_complex() else values


@dataclass(frozen=True, slots=True)
class Widened:
    """A parameter whose gradient is float32 for the time of a step, and what it is otherwise."""

    param: Tensor
    dtype: torch.dtype
    grad_dtype: torch.dtype | None


def read_and_unscale(optimizer: Optimizer, inverse: OnDevices) -> list[Unscaled]:
    """Read every gradient of ``optimizer``; raises if one is broken, writes nothing."""
    ours = isinstance(optimizer, MaskedOptimizer)
    found = []
    for param in parameters_of(optimizer):
        gradient = current_gradient(param, f"a parameter of {type(optimizer).__name__}")
        if gradient is None:
            continue
        trained, dtype = trained_entries(param), gradient.dtype
        if is_half(gradient):
            # What was scaled so as to survive underflows when it is unscaled in half precision. The rules of mg.optim
            # compute in float32 anyway; those of torch.optim refuse another dtype than the parameter's.
            dtype = torch.float32 if ours else torch.promote_types(dtype, param.dtype)
        if (
            isinstance(gradient, Tensor)
            and gradient.layout is torch.strided
            and not gradient.is_complex()
            and trained is None
            and not is_half(gradient)  # rounded, it might overflow
        ):
            found.append(Unscaled(param, gradient))
        else:
            merged = read(gradient, "a gradient").wide(inverse.on(gradient.device)).merged()
            merged = merged.with_values(merged.values.to(dtype))
            found.append(Unscaled(param, gradient, merged, trained))
    return found


def check_finite(found: Iterable[Unscaled], found_inf: OnDevices, inverse: OnDevices, in_place: bool) -> None:
    """Set ``found_inf`` on the devices where something is infinite or NaN, and unscale what is to be in place.

    With ``in_place`` False nothing is unscaled that is not yet.
    """
    # By identity: a gradient that two parameters share is unscaled once.
    groups: dict[tuple[torch.device, torch.dtype, bool], dict[int, Tensor]] = defaultdict(dict)
    for one in found:
        tensor = one.checked()
        still_scaled = one.merged is None
        key = id(one.gradient) if still_scaled else id(tensor)
        groups[tensor.device, tensor.dtype, still_scaled][key] = tensor
    for (device, _, still_scaled), tensors in groups.items():
        flag, factor = found_inf.on(device), inverse.on(device)
        unchanged = torch.ones_like(factor)
        listed = list(tensors.values())
        # The kernel looks at what it is given, not at the product.
        torch._amp_foreach_non_finite_check_and_unscale_(
            listed, flag, factor if still_scaled and in_place else unchanged
        )
        if still_scaled and in_place and bool(factor > 1):  # a scale below 1 makes gradients larger
            torch._amp_foreach_non_finite_check_and_unscale_(listed, flag, unchanged)


def write_unscaled(found: Iterable[Unscaled]) -> list[Widened]:
    """Put the unscaled gradients in the place of the old ones; returns those that have another dtype now."""
    widened = []
    for one in found:
        if one.merged is None:
            continue
        param, old = one.param, one.gradient
        new = one.merged.like(old)
        if isinstance(old, Tensor) and old.layout is torch.strided and old.dtype is new.dtype:
            old.copy_(one.merged.values)
            continue
        if old.dtype is not new.dtype and param.grad is not None and attached_gradient(param) is None:
            widened.append(Widened(param, old.dtype, grad_dtype(param)))
        replace_gradient(param, new)
    return widened


def narrow_again(widened: Iterable[Widened]) -> None:
    """Give parameters the gradient's dtype back that they had before it was unscaled."""
    for one in widened:
        gradient = current_gradient(one.param, "a parameter")
        keep_attached(one.param, None)
        one.param.grad = None
        set_grad_dtype(one.param, one.grad_dtype)
        if isinstance(gradient, Tensor):
            one.param.grad = gradient.to(one.dtype)
