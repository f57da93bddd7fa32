"""Sums of gradients over backward passes, one for each loss, accumulated in ``.grad``.

``.grad`` holds the sum of the loss whose backward pass runs, and keeps it if there is only one loss. Gradients that
``.grad`` cannot accumulate (masked ones) are removed after each pass and added here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.gradients.added import added
from maskgrad.gradients.attached import (
    AnyGradient,
    attached_gradient,
    current_gradient,
    grad_dtype,
    keep_attached,
    set_grad_dtype,
)
from maskgrad.gradients.gradient import is_strided, read
from maskgrad.gradients.parameter_arguments import listed_parameters
from maskgrad.masked_tensor import MaskedTensor, from_sparse, masked
from maskgrad.masked_tensor.tensor import stored_of
from maskgrad.semantics.entries import HALVES

__all__ = ["GradientSums", "Parameters", "check_no_gradients", "named_parameters"]

Parameters = nn.Module | Tensor | MaskedTensor | Iterable[Tensor | MaskedTensor]


class GradientSums:
    """Sums for losses of any names; raises a RuntimeError if a parameter already has a gradient."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        check_no_gradients(named)
        self.params = params = [*named.values()]
        #: for each loss and parameter: the sum while it is not in ``.grad``, and what ``.grad`` cannot accumulate
        self._plain: dict[str | None, list[Tensor | None]] = {}
        self._apart: dict[str | None, list[AnyGradient | None]] = {}
        self._present: list[str | None] = []  # the loss whose sum is in .grad
        self._dtypes: dict[int, torch.dtype | None] = {}
        for place, param in enumerate(params):
            if param.dtype in HALVES and not hasattr(
                param, "device_mesh"
            ):  # a DTensor accumulates in its wrapper
                self._dtypes[place] = grad_dtype(param)
                param.grad = None
                set_grad_dtype(param, torch.float32)
        self._note()

    def backward(
        self,
        name: str | None,
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        retain_graph: bool = False,
    ) -> None:
        """Backward from ``outputs`` with their ``gradients``; add the result to the sum of ``name``."""
        self._fetch(name)
        try:
            torch.autograd.backward(outputs, gradients, retain_graph=retain_graph)
        finally:
            self._set_apart(name)
            if len(self._plain) > 1:
                self._park()
            self._note()

    def changed(self) -> bool:
        """Return whether any ``.grad`` was modified, replaced or removed since the last pass."""
        return any(
            param.grad is not grad or (grad is not None and grad._version != version)
            for param, (grad, version) in zip(self.params, self._noted, strict=True)
        )

    def divided(self, divisors: Mapping[str | None, float]) -> list[AnyGradient | None]:
        """For each parameter the sum over losses of their sums, by their divisors (inf: zero); in place if possible."""
        self._park()
        found: list[list[AnyGradient]] = [[] for _ in self.params]
        for name in self._plain:
            sums = [*zip(self._plain[name], self._apart[name], strict=True)]
            strided = [gradient for pair in sums for gradient in pair if is_strided(gradient)]
            _divide(strided, divisors[name])
            for parts, pair in zip(found, sums, strict=True):
                parts += [
                    gradient if is_strided(gradient) else _by(gradient, divisors[name])
                    for gradient in pair
                    if gradient is not None
                ]
        return [added(parts) if len(parts) > 1 else parts[0] if parts else None for parts in found]

    def write(self, gradients: Sequence[AnyGradient | None]) -> None:
        """Write finished gradients to ``.grad``, in the parameters' dtypes."""
        self.close()
        for place, (param, gradient) in enumerate(zip(self.params, gradients, strict=True)):
            if gradient is None:
                continue
            dtype = param.dtype
            if place in self._dtypes:
                dtype = self._dtypes[place] or dtype
            keep_attached(param, gradient.to(dtype))

    def close(self) -> None:
        """Let parameters accumulate gradients in their own dtypes again."""
        for place, dtype in self._dtypes.items():
            param, gradient = self.params[place], self.params[place].grad
            if grad_dtype(param) is dtype:
                continue
            param.grad = None
            set_grad_dtype(param, dtype)
            if gradient is not None:
                param.grad = gradient.to(dtype or param.dtype)

    def state(self) -> dict[str | None, tuple[list[Any], list[Any]]]:
        """Copies of the sums of each loss, made of plain tensors."""
        return {
            loss: ([*map(_encoded, self._sums_of(loss))], [*map(_encoded, self._apart[loss])])
            for loss in self._plain
        }

    def load(self, state: Mapping[str | None, Sequence[Sequence[Any]]]) -> None:
        """The inverse of :meth:`state`."""
        for loss, (plain, apart) in state.items():
            self._plain[loss] = [_decoded(g, p.device) for g, p in zip(plain, self.params, strict=True)]
            self._apart[loss] = [_decoded(g, p.device) for g, p in zip(apart, self.params, strict=True)]
        if len(state) == 1:
            self._fetch(next(iter(state)))
        self._note()

    def _sums_of(self, name: str | None) -> list[Tensor | None]:
        return [param.grad for param in self.params] if name in self._present else self._plain[name]

    def _fetch(self, name: str | None) -> None:
        """Move the sum of this loss to ``.grad``."""
        if name in self._present:
            return
        self._park()
        sums = self._plain.setdefault(name, [None] * len(self.params))
        self._apart.setdefault(name, [None] * len(self.params))
        for place, param in enumerate(self.params):
            if sums[place] is not None:
                param.grad, sums[place] = sums[place], None
        self._present = [name]

    def _park(self) -> None:
        """Remove the sum of a loss from ``.grad``."""
        for name in self._present:
            self._plain[name] = self._sums_of(name)
            for param in self.params:
                param.grad = None
        self._present = []

    def _set_apart(self, name: str | None) -> None:
        apart = self._apart[name]
        for place, param in enumerate(self.params):
            if type(param.grad) is Tensor and place not in self._dtypes:
                continue
            gradient = attached_gradient(param)
            if gradient is None and place in self._dtypes and param.grad is not None:
                gradient = param.grad if param.grad.dtype in HALVES else None  # no grad_dtype in this PyTorch
            if gradient is not None:
                before = apart[place]
                apart[place] = added([gradient] if before is None else [before, gradient])
                keep_attached(param, None)
                param.grad = None

    def _note(self) -> None:
        self._noted = [
            (param.grad, 0 if param.grad is None else param.grad._version) for param in self.params
        ]


def _divide(strided: list[Any], divisor: float) -> None:
    local = [gradient.to_local() if hasattr(gradient, "device_mesh") else gradient for gradient in strided]
    if local and divisor == math.inf:
        torch._foreach_zero_(local)
    elif local and divisor != 1:
        torch._foreach_div_(local, divisor)


def _by(gradient: AnyGradient, divisor: float) -> AnyGradient:
    """A merged, not strided gradient in at least float32, divided by ``divisor``."""
    part = read(gradient, "a gradient").wide().merged()
    values = torch.zeros_like(part.values) if divisor == math.inf else part.values / divisor
    return part.with_values(values).like(gradient)


def _encoded(gradient: AnyGradient | None) -> Any:
    """A copy made of tensors and Python numbers, which ``torch.load(weights_only=True)`` loads."""
    if gradient is None:
        return None
    if not isinstance(gradient, MaskedTensor):
        return gradient.detach().clone()
    if stored_of(gradient) is None:
        return {"values": gradient.filled(0).clone(), "mask": gradient.mask.clone()}
    return {"stored": gradient.to_sparse_tensor().clone()}


def _decoded(saved: Any, device: torch.device) -> Any:
    if saved is None or isinstance(saved, Tensor):
        return saved if saved is None else saved.to(device, copy=True)
    found: dict[str, Any] = {
        name: part.to(device, copy=True) if isinstance(part, Tensor) else part for name, part in saved.items()
    }
    if "rows" in found:
        raise ValueError(
            "this state holds the gradient of a table with a capacity=, which version 0.3 removed; finish the "
            "accumulation with the version that saved it, or begin with a new mg.accumulate()"
        )
    return masked(found["values"], found["mask"]) if "mask" in found else from_sparse(found["stored"])


def check_no_gradients(named: Mapping[str, Tensor]) -> None:
    """Raise a RuntimeError if one of the parameters has a nonzero gradient."""
    for name, param in named.items():
        gradient = current_gradient(param, f"parameter {name!r}")
        if gradient is None:
            continue
        if is_strided(gradient) and not bool(gradient.any()):
            continue  # zero_grad(set_to_none=False)
        raise RuntimeError(
            f"parameter {name!r}, of shape {tuple(param.shape)}, has a .grad from before, which would be divided with "
            "the new ones; call optimizer.zero_grad() after each step, before the first backward()"
        )


def named_parameters(given: Parameters) -> dict[str, Tensor]:
    """Return distinct parameters by name in a module, or position; TypeError or ValueError if there are none."""
    if isinstance(given, (set, frozenset)):
        raise TypeError("parameters must have the same order on all ranks, found a set; use a list")
    if isinstance(given, nn.Module):
        named: list[tuple[str, Any]] = list(given.named_parameters())
    else:
        named = [(str(place), one) for place, one in enumerate(listed_parameters(given))]
    found: dict[int, tuple[str, Tensor]] = {}
    for name, one in named:
        param = one._values if isinstance(one, MaskedTensor) else one
        found.setdefault(id(param), (name, param))
    if not found:
        raise ValueError("there are no parameters; pass a module with parameters, and no exhausted iterator")
    return dict(found.values())
