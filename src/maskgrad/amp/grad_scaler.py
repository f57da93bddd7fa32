"""The scaler of mixed precision, for dense, sparse and masked gradients of any dtype."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from maskgrad.amp.unscaling import OnDevices, check_finite, narrow_again, read_and_unscale, write_unscaled
from maskgrad.gradients.step_hooks import parameters_of
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["GradScaler"]

_WIDENED = "widened gradients"  # in the scaler's own notes on one optimizer


class GradScaler(torch.amp.GradScaler):
    r"""``torch.amp.GradScaler`` that also takes float16, sparse, masked and attached gradients.

    .. math:: \tilde g_i = \sum_{k:\, \mathrm{index}_k = i} \frac{g_k}{\text{scale}}

    Contributions to one entry are unscaled and added in float32, and the finite check looks at the sums: 40000 +
    40000 in float16 with scale 8 is a gradient of 10000, and 3e38 + 3e38 in float32 with scale 1 is an overflow. The
    step is skipped, parameters and state untouched, if a sum is infinite or NaN. What is unspecified, and what
    :func:`maskgrad.train_only` freezes, is never looked at: NaN in the place of a missing label skips no step.

    Works with the optimizers of ``mg.optim`` and of ``torch.optim``, several of them, and several losses. A gradient
    of half precision is refused by PyTorch's scaler. Here an optimizer of ``mg.optim`` gets it in float32, so that
    nothing underflows when it is unscaled: between ``unscale_`` and the end of :meth:`step`, ``.grad`` of a half
    parameter is a float32 tensor (``Tensor.grad_dtype``). Any other optimizer gets it in the parameter's dtype, in
    which it is checked too.

    Args:
        device: ``"cuda"`` or ``"cpu"``.
        init_scale: the first scale.
        growth_factor: what the scale is multiplied by after ``growth_interval`` steps without overflow; above 1.
        backoff_factor: what it is multiplied by after an overflow; below 1.
        growth_interval: that number of steps.
        enabled: False makes every method do nothing, except :meth:`step`, which calls ``optimizer.step``.

    State:
        ``state_dict()`` is PyTorch's; either scaler loads the other's.

    Raises:
        RuntimeError: ``unscale_`` twice or after ``step``, ``step`` twice before ``update``, a closure.
        IndexError, TypeError, ValueError: a gradient's indices or layout are broken; no gradient was changed.

    Dense equivalent: ``torch.amp.GradScaler``, bit for bit for dense gradients that it takes.

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

    # Built on three methods of PyTorch's scaler that are not public, _lazy_init_scale_growth_tracker,
    # _unscale_grads_ and _check_inf_per_device, for the sake of isinstance and of one set of rules for the scale.

    def scale(self, outputs: Any) -> Any:
        """Multiply a loss, masked or not, or losses in any iterable, by the scale.

        Args:
            outputs: tensor, MaskedTensor, or iterable of them, perhaps nested.

        Returns:
            The same in the same kind of container (a ``map`` for an iterable other than a list or tuple).
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
        """Unscale, unless that was done, and call ``optimizer.step`` if all gradients are finite.

        Args:
            optimizer: the optimizer, of ``mg.optim`` or not.
            args: passed on.
            kwargs: passed on.

        Returns:
            What ``optimizer.step`` returned; None if it was skipped.

        Raises:
            RuntimeError: a closure (it would compute scaled gradients inside the step), or a second call before
                :meth:`update`.
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
                _narrow_again(self._per_optimizer_states[id(optimizer)])

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Adapt the scale at the end of an iteration, or set it.

        Args:
            new_scale: the new scale, a number or a tensor with one element; None: grow or back off.
        """
        if self._enabled:
            for state in self._per_optimizer_states.values():  # unscaled, but not stepped
                _narrow_again(state)
        super().update(float(new_scale) if isinstance(new_scale, int) else new_scale)

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        """Unscale all gradients, or none if one is broken; overflow is noted per device.

        ``allow_fp16`` comes from ``_check_inf_per_device``: the optimizer unscales by itself, and is to be told only
        whether there is an overflow.
        """
        if allow_fp16:
            assert self._scale is not None
            inv_scale = self._scale.double().reciprocal().float()
        inverse, found = OnDevices(inv_scale), OnDevices(found_inf)
        with torch.no_grad():
            gradients = read_and_unscale(optimizer, inverse)
            check_finite(gradients, found, inverse, in_place=not allow_fp16)
            _agree_with_other_ranks(optimizer, found)
            if not allow_fp16:
                widened = write_unscaled(gradients)
                self._per_optimizer_states[id(optimizer)][_WIDENED] = widened
        return found.copies


def _agree_with_other_ranks(optimizer: Optimizer, found: OnDevices) -> None:
    """Note an overflow that another rank has seen in its rows of a sharded table: all skip the step, or none."""
    # Where nobody has imported it there is no sharded table. Nobody else has to pay for the import.
    if "maskgrad.distributed" not in sys.modules:
        return
    from maskgrad.distributed.sharding.shards import is_sharded, overflow_on_other_ranks

    shards = [param for param in parameters_of(optimizer) if is_sharded(param)]
    if shards:
        here = any(bool(flag) for flag in found.copies.values())
        if overflow_on_other_ranks(shards, here):
            found.on(shards[0].device).fill_(1.0)


def _narrow_again(optimizer_state: dict[str, Any]) -> None:
    narrow_again(optimizer_state.pop(_WIDENED, ()))
