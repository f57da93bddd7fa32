"""Sums of gradients over backward passes, one for each loss, apart from ``.grad``.

Each pass begins without gradients, and its result is added here. Between passes ``.grad`` shows the strided sums of a
single loss, in the parameter's dtype.
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
    current_gradient,
    grad_dtype,
    keep_attached,
)
from maskgrad.gradients.gradient import is_strided, read, widened_dtype
from maskgrad.gradients.parameter_arguments import listed_parameters
from maskgrad.masked_tensor import MaskedTensor, from_sparse, masked
from maskgrad.masked_tensor.tensor import stored_of

__all__ = ["GradientSums", "Parameters", "check_no_gradients", "named_parameters"]

Parameters = nn.Module | Tensor | MaskedTensor | Iterable[Tensor | MaskedTensor]


class GradientSums:
    """Sums for losses of any names; raises a RuntimeError if a parameter already has a gradient."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        check_no_gradients(named)
        self.params = params = [*named.values()]
        self._sums: dict[str | None, list[AnyGradient | None]] = {}
        self._seen: list[tuple[Tensor | None, int]] = [(None, 0)] * len(params)
        for param in params:
            param.grad = None

    def backward(
        self,
        name: str | None,
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        retain_graph: bool = False,
    ) -> None:
        """Backward from ``outputs`` with their ``gradients``; add the result to the sum of ``name``."""
        self.close()
        try:
            torch.autograd.backward(outputs, gradients, retain_graph=retain_graph)
        finally:
            self._take(name)

    def changed(self) -> bool:
        """Return whether any ``.grad`` was modified, replaced or removed since the last pass."""
        return any(
            param.grad is not grad or (grad is not None and grad._version != version)
            for param, (grad, version) in zip(self.params, self._seen, strict=True)
        )

    def divided(self, divisors: Mapping[str | None, float]) -> list[AnyGradient | None]:
        """For each parameter the sum over losses of their sums, by their divisors (inf: zero); in place if possible."""
        found: list[list[AnyGradient]] = [[] for _ in self.params]
        if len(divisors) == 1 and any(
            p.grad is not g for p, (g, _) in zip(self.params, self._seen, strict=True)
        ):
            self.close()
            self._take(next(iter(divisors)))  # of fully_shard, which has reduced its sums now
        for name, sums in self._sums.items():
            _divide([gradient for gradient in sums if is_strided(gradient)], divisors[name])
            for parts, gradient in zip(found, sums, strict=True):
                if gradient is not None:
                    parts.append(gradient if is_strided(gradient) else _by(gradient, divisors[name]))
        return [added(parts) if len(parts) > 1 else parts[0] if parts else None for parts in found]

    def write(self, gradients: Sequence[AnyGradient | None]) -> None:
        """Write finished gradients to ``.grad``, in the parameters' dtypes."""
        self.close()
        for param, gradient in zip(self.params, gradients, strict=True):
            if gradient is not None:
                keep_attached(param, gradient.to(grad_dtype(param) or param.dtype))

    def close(self) -> None:
        """Remove sums from ``.grad``."""
        for param, (grad, _) in zip(self.params, self._seen, strict=True):
            if grad is not None and param.grad is grad:
                param.grad = None

    def state(self) -> dict[str | None, list[Any]]:
        """Copies of the sums of each loss, made of plain tensors."""
        return {name: [*map(_encoded, sums)] for name, sums in self._sums.items()}

    def load(self, state: Mapping[str | None, Sequence[Any]]) -> None:
        """The inverse of :meth:`state`."""
        for name, saved in state.items():
            if isinstance(saved, tuple):  # until version 0.3 two lists: of what .grad held, and of the others
                kinds = [
                    [_decoded(g, p.device) for g, p in zip(one, self.params, strict=True)] for one in saved
                ]
                self._sums[name] = [_plus(*pair) for pair in zip(*kinds, strict=True)]
            else:
                self._sums[name] = [_decoded(g, p.device) for g, p in zip(saved, self.params, strict=True)]
            self._show(self._sums[name])

    @torch.no_grad()
    def _take(self, name: str | None) -> None:
        """Add the gradients of parameters to the sums of ``name``, and show those."""
        sums = self._sums.setdefault(name, [None] * len(self.params))
        for place, param in enumerate(self.params):
            gradient = current_gradient(param)
            if gradient is not None:
                keep_attached(param, None)
                param.grad = None
                sums[place] = _plus(sums[place], gradient)
        self._show(sums)

    def _show(self, sums: Sequence[AnyGradient | None]) -> None:
        """Show the sums of a single loss in ``.grad``, where clipping and other changes of them are noticed."""
        single = len(self._sums) == 1
        for place, (param, gradient) in enumerate(zip(self.params, sums, strict=True)):
            shown = gradient if single and is_strided(gradient) and gradient.dtype is param.dtype else None
            param.grad = shown
            self._seen[place] = shown, 0 if shown is None else shown._version


def _plus(before: AnyGradient | None, gradient: AnyGradient | None) -> AnyGradient | None:
    """The sum of two gradients, in at least float32; in place if both are strided."""
    if before is None or gradient is None:
        one = gradient if before is None else before
        return None if one is None else one.to(widened_dtype(one.dtype))
    if is_strided(before) and is_strided(gradient):
        return before.add_(gradient)
    return added([before, gradient])


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
