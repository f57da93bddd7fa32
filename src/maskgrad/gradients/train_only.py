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

__all__ = ["keep_trained_entries", "trained_entries"]

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
        if _ATTRIBUTE not in new.__dict__:
            keep_trained_entries(new, held.mask.to(new.device))

    return give


after_replacing(_handed_over)


class _Guard(StepObserver):
    """Hides frozen entries from optimizers that do not support masks, and restores them after the step."""

    def __init__(self) -> None:
        self._before: WeakKeyDictionary[Optimizer, list[tuple[Tensor, Tensor, Tensor]]] = WeakKeyDictionary()

    def before_step(self, optimizer: Optimizer) -> None:
        self._before.pop(optimizer, None)  # the last step raised
        if getattr(optimizer, "takes_masked_gradients", False):
            return
        masks = [(p, m) for p in parameters_of(optimizer) if (m := trained_entries(p)) is not None]
        if masks:
            self._before[optimizer] = [(param, mask, param.detach().clone()) for param, mask in masks]

    def gradients_ready(self, optimizer: Optimizer) -> None:
        for param, mask, _ in self._before.get(optimizer, ()):
            gradient = param.grad
            if gradient is not None and gradient.layout in (torch.strided, torch.sparse_coo):
                _zero_outside(gradient.detach(), mask)

    def after_step(self, optimizer: Optimizer) -> None:
        for param, mask, before in self._before.pop(optimizer, ()):
            values = param.detach()
            torch.where(mask, values, before, out=values)


_GUARD = _Guard()


def _zero_outside(gradient: Tensor, mask: Tensor) -> None:
    """Set frozen entries of a strided or COO gradient to 0; filled, because they may be NaN."""
    if gradient.layout is torch.strided:
        gradient.masked_fill_(~mask, 0)
        return
    indices, values = stored(gradient)
    sizes = gradient.shape[: gradient.sparse_dim()]
    at = places(positions(indices, sizes, "a gradient"), sizes)
    values.masked_fill_(~mask[tuple(at)] if sizes else ~mask, 0)


# For torch.load(weights_only=True) of a parameter that has a mask.
let_load([TrainedEntries])
