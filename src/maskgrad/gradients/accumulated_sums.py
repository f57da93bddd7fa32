"""Sums of gradients over micro-batches, one set for each loss, accumulated where PyTorch does: in ``.grad``.

With one loss the sum is in ``.grad`` all the time. With several, that of the loss whose backward pass runs is. What
``.grad`` cannot add up by itself (masked gradients, padded rows) is taken out after each pass and added here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
    replace_gradient,
    set_grad_dtype,
)
from maskgrad.gradients.gradient import is_strided, read
from maskgrad.gradients.padded_rows import PaddedRows
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.semantics.entries import HALVES

__all__ = ["GradientSums", "Parameters", "check_no_gradients", "divided", "parameter_list"]

Parameters = nn.Module | Tensor | MaskedTensor | Iterable[Tensor | MaskedTensor]

#: Types that ``.grad`` adds up by itself.
_ADDS_UP = frozenset({Tensor, type(None)})
_PLAIN = frozenset({Tensor, torch.strided})
_HALVES = frozenset(HALVES)


class GradientSums:
    """The sums of one step, for each of ``losses`` losses; RuntimeError if a parameter has a gradient already."""

    def __init__(self, params: Sequence[Tensor], losses: int) -> None:
        self.params = params
        self._kept: list[list[Any]] = [[None] * len(params) for _ in range(losses)]
        self._apart: list[dict[int, AnyGradient]] = [{} for _ in range(losses)]
        self._several = losses > 1
        self._grads: list[Any] = []
        self._versions: list[int] = []
        # On PyTorch/XLA a masked gradient is an attribute of the parameter, and .grad does not show it.
        self._is_xla = any(param.is_xla for param in params)  # type: ignore[attr-defined]
        if any(param.grad is not None for param in params) or self._is_xla:
            check_no_gradients(params)
        self._dtypes: dict[int, torch.dtype | None] = {}
        if not _HALVES.isdisjoint([param.dtype for param in params]):
            self._accumulate_in_float32()
        self._note()

    def can_be_reused(self) -> bool:
        """Whether these sums serve another step: of one loss, finished, with no gradients left and no halves."""
        if self._several or self._is_xla or self._dtypes or self._apart[0]:
            return False
        if any(param.grad is not None or param.dtype in _HALVES for param in self.params):
            return False
        self._grads, self._versions = [None] * len(self.params), []
        return True

    @property
    def wide(self) -> bool:
        """Whether no parameter is of half precision, where numbers must stay near one."""
        return not self._dtypes

    def backward(self, place: int, loss: Tensor, seed: Tensor, retain_graph: bool) -> None:
        """Backward from ``loss`` with ``seed``; the gradients are added to the sums of the loss at ``place``."""
        kept = self._kept[place]
        if self._several:
            for param, gradient in zip(self.params, kept, strict=True):
                if gradient is not None:
                    param.grad = gradient
        try:
            loss.backward(seed, retain_graph=retain_graph)
        finally:
            self._after(place)

    def changed(self) -> bool:
        """Whether something in ``.grad`` was written to, added to, replaced or removed since the last pass.

        A hook on each parameter would see it, too, and takes ten times as long in each backward pass.
        """
        grads = self._grads
        for place, param in enumerate(self.params):
            if param.grad is not grads[place]:
                return True
        return [gradient._version for gradient in grads if gradient is not None] != self._versions

    def scale(self, loss: int, factor: float) -> None:
        """Multiply all sums of a loss by a power of two, which is exact."""
        for gradient in self._kept[loss] if self._several else [param.grad for param in self.params]:
            if gradient is not None:
                gradient.mul_(factor)
        for place, apart in self._apart[loss].items():
            self._apart[loss][place] = _by(apart, 1 / factor)
        self._note()

    def summed(self, loss: int, place: int) -> AnyGradient | None:
        """The sum of a loss for one parameter."""
        gradient = self._kept[loss][place] if self._several else self.params[place].grad
        apart = self._apart[loss].get(place)
        if gradient is None or apart is None:
            return apart if gradient is None else gradient
        return added([gradient, apart])

    def divided(self, divisors: Sequence[float], in_place: bool) -> list[AnyGradient | None]:
        """For each parameter the sum over the losses of their sums by their divisors (inf: none of it)."""
        places = range(len(self.params))
        sums = [[self.summed(loss, place) for place in places] for loss in range(len(divisors))]
        return divided(sums, divisors, in_place)

    def divide_in_place(self, divisor: float) -> bool:
        """Divide the sums of the only loss in ``.grad``, if that is all there is to do."""
        if self._several or self._dtypes or self._apart[0] or divisor in (0, math.inf):
            return False
        dense = [gradient for param in self.params if (gradient := param.grad) is not None]
        kinds = {*map(type, dense)} | {gradient.layout for gradient in dense}
        if not _PLAIN.issuperset(kinds):
            return False
        if divisor != 1:
            _divide_plain(dense, divisor)
        self._grads = []  # the user frees them
        return True

    def write(self, gradients: Sequence[AnyGradient | None]) -> None:
        """Replace the sums by finished gradients, in the parameters' dtypes."""
        for place, (param, gradient) in enumerate(zip(self.params, gradients, strict=True)):
            if gradient is None:
                continue
            dtype = param.dtype
            if place in self._dtypes:
                dtype = self._dtypes[place] or dtype
                param.grad = None
                set_grad_dtype(param, self._dtypes[place])
            if param.grad is gradient:
                continue
            finished = _in_dtype(gradient, dtype)
            if isinstance(finished, Tensor) and finished.layout in (torch.strided, torch.sparse_coo):
                replace_gradient(param, finished)
            else:
                param.grad = None
                keep_attached(param, finished)
        self.close()

    def close(self) -> None:
        """Put back the dtypes in which parameters accumulate gradients."""
        for place, dtype in self._dtypes.items():
            param, gradient = self.params[place], self.params[place].grad
            if grad_dtype(param) is dtype:
                continue
            param.grad = None
            set_grad_dtype(param, dtype)
            if gradient is not None:
                param.grad = gradient.to(dtype or param.dtype)
        self._dtypes = {}

    def _accumulate_in_float32(self) -> None:
        """For parameters of half precision."""
        for place, param in enumerate(self.params):
            if param.dtype in HALVES and not hasattr(param, "device_mesh"):  # a DTensor accumulates elsewhere
                self._dtypes[place] = grad_dtype(param)
                param.grad = None
                set_grad_dtype(param, torch.float32)

    def _after(self, loss: int) -> None:
        """Move away what ``.grad`` cannot add up, or has no place for, and note what is there now."""
        self._note()
        if self._is_xla or self._dtypes or not _ADDS_UP.issuperset(map(type, self._grads)):
            self._move_apart(loss)
            self._note()
        if self._several:
            self._kept[loss] = self._grads
            for param in self.params:
                param.grad = None
            self._note()

    def _note(self) -> None:
        self._grads = [param.grad for param in self.params]
        self._versions = [gradient._version for gradient in self._grads if gradient is not None]

    def _move_apart(self, loss: int) -> None:
        apart = self._apart[loss]
        for place, param in enumerate(self.params):
            gradient = attached_gradient(param)
            if gradient is None and place in self._dtypes and param.grad is not None:
                gradient = param.grad if param.grad.dtype in HALVES else None  # no grad_dtype in this PyTorch
            if gradient is not None:
                apart[place] = added([apart[place], gradient] if place in apart else [gradient])
                keep_attached(param, None)
                param.grad = None


def divided(
    sums: Sequence[Sequence[AnyGradient | None]], divisors: Sequence[float], in_place: bool
) -> list[AnyGradient | None]:
    """For each parameter what the losses' ``sums`` by their divisors add up to; ``in_place`` where that is possible."""
    if in_place:
        for gradients, divisor in zip(sums, divisors, strict=True):
            _divide([gradient for gradient in gradients if is_strided(gradient)], divisor)
    found: list[AnyGradient | None] = []
    for of_losses in zip(*sums, strict=True):
        parts = [
            gradient if in_place and is_strided(gradient) else _by(gradient, divisor)
            for gradient, divisor in zip(of_losses, divisors, strict=True)
            if gradient is not None
        ]
        found.append(added(parts) if len(parts) > 1 else parts[0] if parts else None)
    return found


def _divide(dense: list[Any], divisor: float) -> None:
    sharded = [gradient for gradient in dense if hasattr(gradient, "device_mesh")]
    if sharded:  # DTensors, which one call does not take together with others
        _divide([gradient.to_local() for gradient in sharded], divisor)
        dense = [gradient for gradient in dense if not hasattr(gradient, "device_mesh")]
    if not dense:
        return
    if divisor == float("inf"):
        torch._foreach_zero_(dense)
    elif divisor != 1:
        _divide_plain(dense, divisor)


def _divide_plain(dense: list[Any], divisor: float) -> None:
    """In place. On a CPU a number is made a tensor once for each gradient, in four times what dividing takes."""
    kinds = {(gradient.dtype, gradient.is_cpu) for gradient in dense}
    if kinds in ({(torch.float32, True)}, {(torch.float64, True)}):
        torch._foreach_div_(dense, torch.tensor(divisor, dtype=dense[0].dtype))
    elif dense:
        torch._foreach_div_(dense, divisor)


def _by(gradient: AnyGradient, divisor: float) -> AnyGradient:
    """The gradient, merged, in at least float32, by ``divisor``; nothing is written in place."""
    if is_strided(gradient):
        return torch.zeros_like(gradient) if divisor == float("inf") else gradient / divisor
    part = read(gradient, "a gradient").wide().merged()
    values = torch.zeros_like(part.values) if divisor == float("inf") else part.values / divisor
    return part.with_values(values).like(gradient)


def _in_dtype(gradient: AnyGradient, dtype: torch.dtype) -> AnyGradient:
    if isinstance(gradient, PaddedRows):
        return gradient.with_values(gradient.values.to(dtype))
    return gradient.to(dtype)


def check_no_gradients(params: Sequence[Tensor]) -> None:
    """RuntimeError if one of them has a gradient, except zeros."""
    for param in params:
        gradient = current_gradient(param)
        if gradient is None:
            continue
        if is_strided(gradient) and not bool(gradient.any()):
            continue  # zero_grad(set_to_none=False)
        raise RuntimeError(
            f"a parameter of shape {tuple(param.shape)} has a .grad from before, which would be divided with the new "
            "ones; call optimizer.zero_grad() after each step, before the first backward()"
        )


def parameter_list(given: Parameters) -> list[Tensor]:
    """Each parameter once, in their order; TypeError or ValueError if they are none."""
    if isinstance(given, nn.Module):
        given = given.parameters()
    elif isinstance(given, (set, frozenset)):
        raise TypeError("parameters must have the same order on all ranks, found a set; use a list")
    found: dict[int, Tensor] = {}
    for one in [given] if isinstance(given, (Tensor, MaskedTensor)) else list(given):
        if not isinstance(one, (Tensor, MaskedTensor)):
            raise TypeError(f"expected a module or its parameters, found {type(one).__name__}")
        param = one._values if isinstance(one, MaskedTensor) else one
        found.setdefault(id(param), param)
    if not found:
        raise ValueError(
            "there are no parameters; pass a module that has some, and no iterator that is used up"
        )
    return list(found.values())
