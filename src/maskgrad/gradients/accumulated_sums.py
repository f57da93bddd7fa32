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
from maskgrad.gradients.clipping import listed_parameters
from maskgrad.gradients.gradient import is_strided, read, widened_dtype
from maskgrad.masked_tensor import MaskedTensor

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
            for parts, gradient in zip(found, sums, strict=True):
                if gradient is not None:
                    parts.append(_by(gradient, divisors[name]))
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
        """Copies of the sums of each loss."""
        return {
            name: [None if gradient is None else gradient.detach().clone() for gradient in sums]
            for name, sums in self._sums.items()
        }

    def load(self, state: Mapping[str | None, Sequence[Any]]) -> None:
        """The inverse of :meth:`state`."""
        for name, saved in state.items():
            if isinstance(saved, tuple) or any(isinstance(one, dict) for one in saved):
                raise ValueError(
                    "this state of an accumulator was saved before version 0.4; finish the accumulation with the "
                    "version that saved it, or begin the step again"
                )
            pairs = zip(saved, self.params, strict=True)
            self._sums[name] = [None if one is None else one.to(p.device, copy=True) for one, p in pairs]
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


def _by(gradient: AnyGradient, divisor: float) -> AnyGradient:
    """A gradient in at least float32, divided by ``divisor`` (inf: zeros); a strided one in place."""
    if is_strided(gradient):
        local: Any = getattr(gradient, "to_local", lambda: gradient)()
        if divisor != 1:
            local.zero_() if divisor == math.inf else local.div_(divisor)
        return gradient
    part = read(gradient, "a gradient").wide().merged()
    values = torch.zeros_like(part.values) if divisor == math.inf else part.values / divisor
    return part.with_values(values).like(gradient)


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
