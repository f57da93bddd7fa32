"""Gradient scaler for mixed precision, with dense, sparse and masked gradients of any dtype."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import _MultiDeviceReplicator as PerDevice
from torch.optim import Optimizer

from maskgrad.amp.unscaling import check_finite, read_and_unscale, restore_dtypes, write_unscaled
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["GradScaler"]

_WIDENED = "widened gradients"  # in the scaler's state for one optimizer


class GradScaler(torch.amp.GradScaler):
    r"""Gradient scaler: ``torch.amp.GradScaler`` for float16, sparse, masked and attached gradients, too.

    .. math:: \tilde g_i = \sum_{k:\, \mathrm{index}_k = i} \frac{g_k}{\text{scale}}

    Duplicate entries are unscaled and added in float32, and the sums are checked: 40000 + 40000 in float16
    with scale 8 is a gradient of 10000, and 3e38 + 3e38 in float32 with scale 1 is an overflow. If a sum is infinite or
    NaN, the step is skipped, and parameters and state are unchanged. Entries that are unspecified, or frozen by
    :func:`maskgrad.train_only`, are ignored: a NaN for a missing label does not skip a step.

    It works with optimizers of ``mg.optim`` and of ``torch.optim``, several of them, and several losses. PyTorch's
    scaler raises for a gradient in half precision. Here an optimizer of ``mg.optim`` gets it in float32, so that
    nothing underflows when it is unscaled: between ``unscale_`` and the end of :meth:`step`, ``.grad`` of a
    half-precision parameter is a float32 tensor (``Tensor.grad_dtype``). Any other optimizer gets it in the parameter's
    dtype, in which it is also checked.

    Args:
        device: ``"cuda"`` or ``"cpu"``.
        init_scale: initial scale factor.
        growth_factor: factor of the scale after ``growth_interval`` consecutive steps without overflow; above 1.
        backoff_factor: factor of the scale after an overflow; below 1.
        growth_interval: number of these steps.
        enabled: if False, every method does nothing, except :meth:`step`, which calls ``optimizer.step``.

    State:
        ``state_dict()`` is PyTorch's; either scaler loads the other's.

    Raises:
        RuntimeError: ``unscale_`` is called twice or after ``step``, or ``step`` twice before ``update``; a closure.
        IndexError, TypeError, ValueError: indices or layout of a gradient are invalid; no gradient is changed.

    Dense equivalent: ``torch.amp.GradScaler``, bit for bit for dense gradients that it accepts.

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(4, 1, dtype=torch.float16))
        >>> optimizer = mg.optim.SGD([p], lr=0.25)
        >>> scaler = mg.amp.GradScaler("cpu", init_scale=8.0)
        >>> scaled_loss = scaler.scale(torch.zeros(1))
        >>> values = torch.full((2, 1), 40000.0, dtype=torch.float16)
        >>> p.grad = torch.sparse_coo_tensor([[1, 1]], values, (4, 1), check_invariants=True)
        >>> scaler.step(optimizer)
        >>> scaler.update()
        >>> p.data.flatten(), scaler.get_scale()
        (tensor([    0., -2500.,     0.,     0.], dtype=torch.float16), 8.0)

    Source: Micikevicius et al., "Mixed precision training", ICLR 2018; ``torch.amp.GradScaler``, which leaves
    duplicates of float32 and bfloat16 unmerged when it looks for overflow.
    """

    # Uses _lazy_init_scale_growth_tracker, _unscale_grads_ and _check_inf_per_device of PyTorch's scaler, which are not
    # public, so that isinstance holds and the scale follows PyTorch's rules.

    def scale(self, outputs: Any) -> Any:
        """Multiply losses by the scale factor.

        Args:
            outputs: tensor, MaskedTensor, or iterable of them, which may be nested.

        Returns:
            The scaled losses in the same kind of container (a ``map`` for an iterable other than a list or tuple).
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, MaskedTensor):
            if self._scale is None:
                self._lazy_init_scale_growth_tracker(outputs.device)
            assert self._scale is not None
            return outputs * self._scale.to(device=outputs.device, non_blocking=True)
        if isinstance(outputs, Iterable) and not isinstance(outputs, Tensor):
            scaled = map(self.scale, outputs)
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        return super().scale(outputs)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Unscale the gradients, unless that was done, and call ``optimizer.step`` if all of them are finite.

        Args:
            optimizer: any optimizer.
            args: passed to ``optimizer.step``.
            kwargs: passed to ``optimizer.step``.

        Returns:
            The result of ``optimizer.step``; None if it was skipped.

        Raises:
            RuntimeError: a closure is given, which would compute scaled gradients inside the step, or this is called
                again before :meth:`update`.
        """
        if self._enabled and args and callable(args[0]):
            raise RuntimeError(
                "Closure use is not currently supported if GradScaler is enabled: it would compute scaled gradients "
                "inside the step; call backward before scaler.step(optimizer)"
            )
        try:
            return super().step(optimizer, *args, **kwargs)
        finally:
            if self._enabled and id(optimizer) in self._per_optimizer_states:
                restore_dtypes(self._per_optimizer_states[id(optimizer)].pop(_WIDENED, ()))

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Update the scale factor at the end of an iteration.

        Args:
            new_scale: the new scale factor, a number or a tensor with one element; None: it grows or backs off.
        """
        if self._enabled:
            for state in self._per_optimizer_states.values():  # unscaled, but not stepped
                restore_dtypes(state.pop(_WIDENED, ()))
        super().update(float(new_scale) if isinstance(new_scale, int) else new_scale)

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        """Unscale all gradients, or none if one is invalid; returns for each device whether there is an overflow.

        ``allow_fp16`` comes from ``_check_inf_per_device``: the optimizer unscales by itself, and only the check is
        needed.
        """
        if allow_fp16:
            assert self._scale is not None
            inv_scale = self._scale.double().reciprocal().float()
        inverse, found = PerDevice(inv_scale), PerDevice(found_inf)
        with torch.no_grad():
            gradients = read_and_unscale(optimizer, inverse)
            check_finite(gradients, found, inverse, in_place=not allow_fp16)
            if not allow_fp16:
                self._per_optimizer_states[id(optimizer)][_WIDENED] = write_unscaled(gradients)
        return found._per_device_tensors
