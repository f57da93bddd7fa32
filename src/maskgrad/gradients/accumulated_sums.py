"""Sums of gradients over micro-batches, one set for each loss, gathered where PyTorch gathers: in ``.grad``.

With one loss the sum is in ``.grad`` all the time. With several, that of the loss whose backward pass runs is. What
``.grad`` cannot add up by itself (masked gradients, slots) is taken out after each pass and added here.
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
    grad_dtype,
    gradient_or_none,
    keep_attached,
    replace_gradient,
    set_grad_dtype,
)
from maskgrad.gradients.gradient import read
from maskgrad.gradients.padded_rows import PaddedRows
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.semantics.entries import HALVES

__all__ = ["GradientSums", "Parameters", "leftover", "listed"]

Parameters = nn.Module | Tensor | MaskedTensor | Iterable[Tensor | MaskedTensor]

#: What ``.grad`` adds up by itself; others are looked at.
_ADDS_UP = frozenset({Tensor, type(None)})
_PLAIN = frozenset({Tensor, torch.strided})
_HALVES = frozenset(HALVES)


class GradientSums:
    """The sums of one step.

    Args:
        params: those that are trained.
        losses: how many losses have sums of their own.

    Raises:
        RuntimeError: a parameter has a gradient already.
    """

    def __init__(self, params: Sequence[Tensor], losses: int) -> None:
        self.params = params
        self._kept: list[list[Any]] = [[None] * len(params) for _ in range(losses)]
        self._apart: list[dict[int, AnyGradient]] = [{} for _ in range(losses)]
        self._swapping = losses > 1
        self._grads: list[Any] = []
        self._versions: list[int] = []
        # On PyTorch/XLA a masked gradient hangs on the parameter, which nothing in .grad tells.
        self._elsewhere = any(param.is_xla for param in params)  # type: ignore[attr-defined]
        if any(param.grad is not None for param in params) or self._elsewhere:
            refuse_leftovers(params)
        self._dtypes: dict[int, torch.dtype | None] = {}
        if not _HALVES.isdisjoint([param.dtype for param in params]):
            self._gather_wide()
        self._note()

    def begins_again(self) -> bool:
        """Whether these sums serve another step: of one loss, finished, with no gradients left and no halves."""
        if self._swapping or self._elsewhere or self._dtypes or self._apart[0]:
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
        """Propagate ``seed`` from ``loss``, and add what comes of it to the sums of the loss at ``place``."""
        kept = self._kept[place]
        if self._swapping:
            for param, gradient in zip(self.params, kept, strict=True):
                if gradient is not None:
                    param.grad = gradient
        try:
            loss.backward(seed, retain_graph=retain_graph)
        finally:
            self._after(place)

    def changed(self) -> bool:
        """Whether somebody else has written to, added to, replaced or removed what is in ``.grad``.

        A hook on each parameter would tell, too, and takes ten times as long in each backward pass.
        """
        grads = self._grads
        for place, param in enumerate(self.params):
            if param.grad is not grads[place]:
                return True
        return [gradient._version for gradient in grads if gradient is not None] != self._versions

    def times(self, loss: int, factor: float) -> None:
        """Multiply all sums of a loss by a power of two, which is exact."""
        for gradient in self._in_place(loss):
            gradient.mul_(factor)
        for place, apart in self._apart[loss].items():
            self._apart[loss][place] = _by(apart, 1 / factor)
        self._note()

    def summed(self, loss: int, place: int) -> AnyGradient | None:
        """The sum of a loss for one parameter."""
        gradient = self._kept[loss][place] if self._swapping else self.params[place].grad
        apart = self._apart[loss].get(place)
        if gradient is None or apart is None:
            return apart if gradient is None else gradient
        return added([gradient, apart])

    def divided(self, divisors: Sequence[float], in_place: bool) -> list[AnyGradient | None]:
        """For each parameter the sum over the losses of what they have divided by their divisors (inf: none of it)."""
        if in_place:
            return self._divided_in_place(divisors)
        found: list[AnyGradient | None] = []
        for place in range(len(self.params)):
            parts = [
                _by(gradient, divisor)
                for loss, divisor in enumerate(divisors)
                if (gradient := self.summed(loss, place)) is not None
            ]
            found.append(parts[0] if len(parts) == 1 else added(parts) if parts else None)
        return found

    def divided_where_they_are(self, divisor: float) -> bool:
        """Divide the sums of the only loss in ``.grad``, if that is all there is to do."""
        if self._swapping or self._dtypes or self._apart[0] or divisor in (0, math.inf):
            return False
        dense = [gradient for param in self.params if (gradient := param.grad) is not None]
        kinds = {*map(type, dense)} | {gradient.layout for gradient in dense}
        if not _PLAIN.issuperset(kinds):
            return False
        if divisor != 1:
            _divide_plain(dense, divisor)
        self._grads = []  # the user frees them
        return True

    def by(self, gradients: Sequence[AnyGradient | None], divisor: float) -> list[AnyGradient | None]:
        """Sums that came from elsewhere, divided in place where that is possible."""
        dense: list[Any] = [g for g in gradients if _is_plain(g)]
        _divide(dense, divisor)
        return [g if g is None or _is_plain(g) else _by(g, divisor) for g in gradients]

    def write(self, gradients: Sequence[AnyGradient | None]) -> None:
        """Put finished gradients in the place of the sums, in the parameters' dtypes."""
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
            _put(param, _in_dtype(gradient, dtype))
        self.close()

    def close(self) -> None:
        """Let parameters gather their gradients as they did before."""
        for place, dtype in self._dtypes.items():
            param, gradient = self.params[place], self.params[place].grad
            if grad_dtype(param) is dtype:
                continue
            param.grad = None
            set_grad_dtype(param, dtype)
            if gradient is not None:
                param.grad = gradient.to(dtype or param.dtype)
        self._dtypes = {}

    def _gather_wide(self) -> None:
        """Let halves gather in float32."""
        for place, param in enumerate(self.params):
            if param.dtype in HALVES and not hasattr(param, "device_mesh"):  # a DTensor's gather elsewhere
                self._dtypes[place] = grad_dtype(param)
                param.grad = None
                set_grad_dtype(param, torch.float32)

    def _after(self, loss: int) -> None:
        """Keep what ``.grad`` cannot add up, or has no place for, and note what is there now."""
        self._note()
        if self._elsewhere or self._dtypes or not _ADDS_UP.issuperset(map(type, self._grads)):
            self._take_apart(loss)
            self._note()
        if self._swapping:
            self._kept[loss] = self._grads
            for param in self.params:
                param.grad = None
            self._note()

    def _note(self) -> None:
        self._grads = [param.grad for param in self.params]
        self._versions = [gradient._version for gradient in self._grads if gradient is not None]

    def _take_apart(self, loss: int) -> None:
        apart = self._apart[loss]
        for place, param in enumerate(self.params):
            gradient = attached_gradient(param)
            if gradient is None and place in self._dtypes and param.grad is not None:
                gradient = param.grad if param.grad.dtype in HALVES else None  # no grad_dtype in this PyTorch
            if gradient is not None:
                apart[place] = added([apart[place], gradient] if place in apart else [gradient])
                keep_attached(param, None)
                param.grad = None

    def _in_place(self, loss: int) -> list[Tensor]:
        held = self._kept[loss] if self._swapping else [param.grad for param in self.params]
        return [gradient for gradient in held if gradient is not None]

    def _divided_in_place(self, divisors: Sequence[float]) -> list[AnyGradient | None]:
        sums = [
            [self.summed(loss, place) for place in range(len(self.params))] for loss in range(len(divisors))
        ]
        for divisor, gradients in zip(divisors, sums, strict=True):
            _divide([g for g in gradients if _is_plain(g)], divisor)
            for place, gradient in enumerate(gradients):
                if gradient is not None and not _is_plain(gradient):
                    gradients[place] = _by(gradient, divisor)
        if len(sums) == 1:
            return sums[0]
        found: list[AnyGradient | None] = []
        for parts in zip(*sums, strict=True):
            present = [part for part in parts if part is not None]
            found.append(present[0] if len(present) == 1 else added(present) if present else None)
        return found


def _is_plain(gradient: AnyGradient | None) -> bool:
    return isinstance(gradient, Tensor) and gradient.layout is torch.strided


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
    if _is_plain(gradient):
        assert isinstance(gradient, Tensor)
        return torch.zeros_like(gradient) if divisor == float("inf") else gradient / divisor
    part = read(gradient, "a gradient").wide().merged()
    values = torch.zeros_like(part.values) if divisor == float("inf") else part.values / divisor
    return part.with_values(values).like(gradient)


def _in_dtype(gradient: AnyGradient, dtype: torch.dtype) -> AnyGradient:
    if gradient.dtype is dtype:
        return gradient
    if isinstance(gradient, PaddedRows):
        return gradient.with_values(gradient.values.to(dtype))
    return gradient.to(dtype)


def _put(param: Tensor, gradient: AnyGradient) -> None:
    held = isinstance(gradient, Tensor) and gradient.layout in (torch.strided, torch.sparse_coo)
    if not held:
        param.grad = None
        keep_attached(param, gradient)
        return
    replace_gradient(param, gradient)


def refuse_leftovers(params: Sequence[Tensor]) -> None:
    """RuntimeError if one of them has a gradient, of zeros excepted."""
    for param in params:
        gradient = gradient_or_none(param)
        if gradient is None:
            continue
        if _is_plain(gradient) and not bool(gradient.any()):  # type: ignore[union-attr]
            continue  # zero_grad(set_to_none=False)
        raise RuntimeError(
            f"a parameter of shape {tuple(param.shape)} has a .grad from before, which would be divided together with "
            "the new ones; call optimizer.zero_grad() after each step, before the first backward()"
        )


def leftover(params: Sequence[Tensor]) -> Exception | None:
    """What :func:`refuse_leftovers` raises."""
    try:
        refuse_leftovers(params)
    except (RuntimeError, ValueError) as error:
        return error
    return None


def listed(given: Parameters) -> list[Tensor]:
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
            "there are no parameters; give a module that has some, and no iterator that is used up"
        )
    return list(found.values())
