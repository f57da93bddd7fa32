"""The entries of a parameter that are trained, and the guard that keeps optimizers from changing the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from maskgrad.gradients.step_hooks import StepObserver, observe_steps, parameters_of
from maskgrad.kernels.smallest import smallest
from maskgrad.masked_tensor.torch_patches.modules import after_replacing
from maskgrad.masked_tensor.torch_patches.pytrees import let_load
from maskgrad.patterns.mask_arguments import check_mask
from maskgrad.sparse import places, positions, stored

__all__ = ["has_trained_entries", "keep_trained_entries", "trained_entries"]

_ATTRIBUTE = "_maskgrad_trained"


def keep_trained_entries(param: Tensor, mask: Tensor | None) -> None:
    """Register ``mask`` with ``param``, or remove it. Raises as :func:`maskgrad.train_only`."""
    if not isinstance(param, Tensor) or param.layout is not torch.strided:
        found = f"layout {param.layout}" if isinstance(param, Tensor) else type(param).__name__
        raise TypeError(
            f"param must be a strided tensor, got {found}; of a MaskedTensor and of a sparse tensor only the "
            "specified entries are trained anyway"
        )
    if mask is None:
        param.__dict__.pop(_ATTRIBUTE, None)
        return
    own = smallest(check_mask(mask, param.shape, param.device, true="trained"))
    setattr(param, _ATTRIBUTE, TrainedEntries(own.clone()))


def trained_entries(param: Tensor) -> Tensor | None:
    """The mask that :func:`maskgrad.train_only` gave to ``param``, in its shape; None: all entries are trained.

    Raises:
        ValueError: the parameter's shape was changed since.

    Example:
        >>> w = torch.nn.Parameter(torch.ones(2))
        >>> mg.optim.trained_entries(w) is None
        True
        >>> mg.train_only(w, torch.tensor([True, False]))
        >>> mg.optim.trained_entries(w)
        tensor([ True, False])
    """
    held: TrainedEntries | None = getattr(param, _ATTRIBUTE, None)
    return None if held is None else held.for_param(param)


def has_trained_entries(param: Tensor) -> bool:
    """Return whether ``param`` has such a mask."""
    return _ATTRIBUTE in param.__dict__


class TrainedEntries:
    """The mask as an attribute of a parameter. Loading one from a file registers the hooks."""

    __slots__ = ("mask",)

    def __init__(self, mask: Tensor) -> None:
        if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:  # a file may contain anything
            raise TypeError(f"trained entries are a Boolean tensor, found {type(mask).__name__}")
        self.mask = mask
        observe_steps(_GUARD)

    def __reduce__(self) -> tuple[Any, ...]:
        return TrainedEntries, (self.mask,)

    def for_param(self, param: Tensor) -> Tensor:
        """The mask on the device and in the shape of ``param``."""
        if self.mask.device != param.device:  # the module was moved
            self.mask = self.mask.to(param.device)
        if self.mask.dim() != param.dim() or any(
            m not in (1, p) for m, p in zip(self.mask.shape, param.shape, strict=True)
        ):
            raise ValueError(
                f"a parameter of shape {tuple(param.shape)} has a mask of shape {tuple(self.mask.shape)} from "
                "mg.train_only; its shape was changed since: call mg.train_only(param, mask) again"
            )
        return self.mask.expand(param.shape)


def _handed_over(param: Tensor) -> Callable[[Tensor], None] | None:
    """Return what gives the mask of ``param`` to the parameter that replaces it, unless that has one."""
    held: TrainedEntries | None = param.__dict__.get(_ATTRIBUTE)
    if held is None:
        return None

    def give(new: Tensor) -> None:
        if not has_trained_entries(new):
            keep_trained_entries(new, held.mask.to(new.device))

    return give


after_replacing(_handed_over)


class _Frozen:
    """State restored after a step: values of parameters, and temporarily replaced gradients."""

    __slots__ = ("entries", "stand_ins")

    def __init__(self, masks: list[tuple[Tensor, Tensor]]) -> None:
        self.entries = [(param, mask, param.detach().clone()) for param, mask in masks]
        self.stand_ins: list[tuple[Tensor, Tensor, Tensor]] = []

    def hide_gradients(self) -> None:
        for param, mask, _ in self.entries:
            gradient = param.grad
            if gradient is not None and gradient.layout in (torch.strided, torch.sparse_coo):
                stand_in = _zero_outside(gradient, mask)
                param.grad = stand_in
                self.stand_ins.append((param, stand_in, gradient))

    def show_gradients(self) -> None:
        for param, stand_in, gradient in self.stand_ins:
            if param.grad is stand_in:
                param.grad = gradient
        self.stand_ins.clear()

    def put_back(self) -> None:
        for param, mask, before in self.entries:
            values = param.detach()
            torch.where(mask, values, before, out=values)


class _Guard(StepObserver):
    """Restores frozen entries after the steps of optimizers that do not support masks."""

    def __init__(self) -> None:
        self._steps: WeakKeyDictionary[Optimizer, _Frozen] = WeakKeyDictionary()

    def before_step(self, optimizer: Optimizer) -> None:
        interrupted = self._steps.pop(optimizer, None)
        if interrupted is not None:  # the last step raised
            interrupted.show_gradients()
        if getattr(optimizer, "knows_trained_entries", False):
            return
        masks = [(p, m) for p in parameters_of(optimizer) if (m := trained_entries(p)) is not None]
        if masks:
            self._steps[optimizer] = _Frozen(masks)

    def before_closure(self, optimizer: Optimizer) -> None:
        frozen = self._steps.get(optimizer)
        if frozen is not None:
            frozen.show_gradients()

    def gradients_ready(self, optimizer: Optimizer) -> None:
        frozen = self._steps.get(optimizer)
        if frozen is not None:
            frozen.hide_gradients()

    def after_step(self, optimizer: Optimizer) -> None:
        frozen = self._steps.pop(optimizer, None)
        if frozen is not None:
            frozen.show_gradients()
            frozen.put_back()


_GUARD = _Guard()


def _zero_outside(gradient: Tensor, mask: Tensor) -> Tensor:
    """A copy of a strided or COO gradient with 0 at frozen entries; selected, because they may be NaN."""
    if gradient.layout is torch.strided:
        return torch.where(mask, gradient.detach(), 0)
    indices, values = stored(gradient)
    sizes = gradient.shape[: gradient.sparse_dim()]
    at = places(positions(indices, sizes, "a gradient"), sizes)
    kept = torch.where(mask[tuple(at)] if sizes else mask, values, 0)
    return torch.sparse_coo_tensor(
        indices, kept, gradient.shape, is_coalesced=gradient.is_coalesced(), check_invariants=False
    )


# For torch.load(weights_only=True) of a parameter that has a mask.
let_load([TrainedEntries])
