"""Accelerate: its loop, with an accumulator in the place of ``accelerator.backward``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from maskgrad.gradients import GradientAccumulator, clip_grad_norm_
from maskgrad.gradients.accumulated_losses import Mean

__all__ = ["AcceleratorAccumulator"]

#: How ``accelerator.distributed_type`` calls those whose gradients others do not exchange or divide.
KNOWN = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_XPU", "FSDP")


class AcceleratorAccumulator(GradientAccumulator):
    """A :class:`maskgrad.GradientAccumulator` that knows from an ``accelerate.Accelerator`` when a step is complete.

    Call ``backward`` with unreduced losses, or a mean and its count, instead of ``accelerator.backward(loss)``: that
    divides by ``gradient_accumulation_steps``. With the last micro-batch it finishes, before the optimizer's step.

    Args:
        accelerator: the ``Accelerator``, whose scaler is used.
        model: what ``accelerator.prepare`` returned.
        mean: as in :class:`maskgrad.GradientAccumulator`.

    Raises:
        ValueError: the accelerator's way of distributing exchanges gradients by itself (DeepSpeed, Megatron, XLA), or
            ``sync_each_batch`` asks for it.

    Example:
        >>> # with accelerator.accumulate(model):
        >>> #     accumulator.backward(F.cross_entropy(model(x), mg.masked(y, y != -100), reduction="none"))
        >>> #     if accelerator.sync_gradients:
        >>> #         accumulator.clip_grad_norm_(1.0)
        >>> #     optimizer.step()
        >>> #     optimizer.zero_grad()

    Source: https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
    """

    def __init__(self, accelerator: Any, model: Any, *, mean: Mean = "entry") -> None:
        kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
        if kind not in KNOWN:
            raise ValueError(
                f"AcceleratorAccumulator: gradients of {kind} are exchanged and divided by it; supported are "
                f"{', '.join(KNOWN)}. Give accelerator.backward a sum divided by the count of all micro-batches instead"
            )
        if accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False):
            raise ValueError(
                "AcceleratorAccumulator: sync_each_batch=True exchanges in each micro-batch, and the accumulator "
                "does it once; leave it out of GradientAccumulationPlugin"
            )
        super().__init__(model, scaler=accelerator.scaler, mean=mean)
        self._accelerator, self._model = accelerator, model

    def backward(self, losses: Any, count: Any = None, **options: Any) -> Any:
        """Propagate the losses of a micro-batch; see :meth:`maskgrad.GradientAccumulator.backward`.

        Returns:
            With the last micro-batch of a step the mean over all of them and all ranks, else None.
        """
        super().backward(losses, count, **options)
        return self.finish() if self._accelerator.sync_gradients else None

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip the model's gradients, unscaled first; with ``fully_shard`` the accelerator does it."""
        if str(getattr(self._accelerator.distributed_type, "value", "")) == "FSDP":
            return self._accelerator.clip_grad_norm_(self._model.parameters(), max_norm, norm_type)  # type: ignore[no-any-return]
        self._accelerator.unscale_gradients()
        return clip_grad_norm_(self._model.parameters(), max_norm, norm_type)
