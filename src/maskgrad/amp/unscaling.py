"""Unscaling the gradients of an optimizer: all of them are read first, then checked, then written.

Dense gradients that keep their dtype use PyTorch's kernel, in place. All others are multiplied and merged in
float32, checked in the form passed to the optimizer, and only then replaced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.amp.grad_scaler import _MultiDeviceReplicator as PerDevice
from torch.optim import Optimizer

from maskgrad.gradients.attached import (
    attached_gradient,
    current_gradient,
    grad_dtype,
    keep_attached,
    replace_gradient,
    set_grad_dtype,
)
from maskgrad.gradients.gradient import AnyGradient, Gradient, read
from maskgrad.gradients.step_hooks import named
from maskgrad.gradients.train_only import trained_entries
from maskgrad.optim.optimizer import MaskedOptimizer
from maskgrad.semantics.entries import HALVES

__all__ = ["check_finite", "read_and_unscale", "restore_dtypes", "write_unscaled"]


Widened = tuple[Tensor, torch.dtype, torch.dtype | None]
"""A parameter whose gradient is float32 during a step, the gradient's dtype otherwise, and the ``grad_dtype``."""


@dataclass(frozen=True, slots=True)
class Unscaled:
    """A gradient that was read, and unscaled in a copy unless PyTorch's kernel can do it in place."""

    param: Tensor
    gradient: AnyGradient
    merged: Gradient | None = None
    """Merged, unscaled, in its final dtype. None: unscaled in place."""
    trained: Tensor | None = None

    def checked(self) -> Tensor:
        """The values that must be finite, as real numbers."""
        if self.merged is None:
            assert isinstance(self.gradient, Tensor)
            return self.gradient
        counted = self.merged.counted(self.trained)
        values = self.merged.values
        values = values if counted is None else torch.where(counted, values, 0)
        return torch.view_as_real(values) if values.is_complex() else values


def read_and_unscale(optimizer: Optimizer, inverse: PerDevice) -> list[Unscaled]:
    """Read every gradient of ``optimizer``; raises if one is invalid, writes nothing."""
    ours = isinstance(optimizer, MaskedOptimizer)
    found = []
    groups = enumerate(optimizer.param_groups)
    for name, param in (one for position, group in groups for one in named(group, position)):
        gradient = current_gradient(param, f"{name} of {type(optimizer).__name__}")
        if gradient is None:
            continue
        trained, dtype = trained_entries(param), gradient.dtype
        if gradient.dtype in HALVES:
            # Unscaled in half precision, it would underflow. The rules of mg.optim compute in float32 anyway; those of
            # torch.optim raise for another dtype than the parameter's.
            dtype = torch.float32 if ours else torch.promote_types(dtype, param.dtype)
        if (
            isinstance(gradient, Tensor)
            and gradient.layout is torch.strided
            and not gradient.is_complex()
            and trained is None
            and gradient.dtype not in HALVES  # it might overflow
        ):
            found.append(Unscaled(param, gradient))
        else:
            merged = read(gradient, "a gradient").wide(inverse.get(gradient.device)).merged()
            merged = merged.with_values(merged.values.to(dtype))
            found.append(Unscaled(param, gradient, merged, trained))
    return found


def check_finite(found: Iterable[Unscaled], found_inf: PerDevice, inverse: PerDevice, in_place: bool) -> None:
    """Set ``found_inf`` on devices with infinite or NaN values; unscale the remaining gradients if ``in_place``."""
    # By identity: a gradient that two parameters share is unscaled once.
    groups: dict[tuple[torch.device, torch.dtype, bool], dict[int, Tensor]] = defaultdict(dict)
    for one in found:
        tensor = one.checked()
        still_scaled = one.merged is None
        key = id(one.gradient) if still_scaled else id(tensor)
        groups[tensor.device, tensor.dtype, still_scaled][key] = tensor
    for (device, _, still_scaled), tensors in groups.items():
        flag, factor = found_inf.get(device), inverse.get(device)
        unchanged = torch.ones_like(factor)
        listed = list(tensors.values())
        # The kernel checks its input, not the product.
        torch._amp_foreach_non_finite_check_and_unscale_(
            listed, flag, factor if still_scaled and in_place else unchanged
        )
        if still_scaled and in_place and bool(factor > 1):  # a scale below 1 makes gradients larger
            torch._amp_foreach_non_finite_check_and_unscale_(listed, flag, unchanged)


def write_unscaled(found: Iterable[Unscaled]) -> list[Widened]:
    """Replace the gradients by the unscaled ones; returns those whose dtype has changed."""
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
            widened.append((param, old.dtype, grad_dtype(param)))
        replace_gradient(param, new)
    return widened


def restore_dtypes(widened: Iterable[Widened]) -> None:
    """Restore the dtype that gradients had before they were unscaled."""
    for param, dtype, wanted in widened:
        gradient = current_gradient(param, "a parameter")
        keep_attached(param, None)
        param.grad = None
        set_grad_dtype(param, wanted)
        if isinstance(gradient, Tensor):
            param.grad = gradient.to(dtype)
