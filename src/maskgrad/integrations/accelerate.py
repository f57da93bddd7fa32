"""Accelerate: an accumulator for its loop."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from maskgrad.gradients import GradientAccumulator, clip_grad_norm_
from maskgrad.gradients.accumulated_losses import Mean

__all__ = ["AcceleratorAccumulator"]

#: Values of ``accelerator.distributed_type`` for which Accelerate does not reduce or divide gradients itself.
KNOWN = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_XPU", "FSDP")


class AcceleratorAccumulator(GradientAccumulator):
    """A :class:`maskgrad.GradientAccumulator` for an ``accelerate.Accelerator``, which tells when a step is complete.

    Call ``backward`` with unreduced losses, or a mean and its count, instead of ``accelerator.backward(loss)``, which
    divides by ``gradient_accumulation_steps``. With the last micro-batch, gradients are divided before the step.

    Args:
        accelerator: the ``Accelerator``, whose scaler is used.
        model: the result of ``accelerator.prepare``.
        mean: as in :class:`maskgrad.GradientAccumulator`.

    Raises:
        ValueError: the accelerator's backend reduces gradients by itself (DeepSpeed, Megatron, XLA), or
            ``sync_each_batch`` is set.

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
                f"AcceleratorAccumulator: {kind} reduces and divides gradients by itself; supported are "
                f"{', '.join(KNOWN)}. Call accelerator.backward(sum / count of all micro-batches) instead"
            )
        if accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False):
            raise ValueError(
                "AcceleratorAccumulator: sync_each_batch=True reduces gradients in each micro-batch, the accumulator "
                "once; remove it from GradientAccumulationPlugin"
            )
        super().__init__(model, scaler=accelerator.scaler, mean=mean)
        self._accelerator, self._model = accelerator, model

    def backward(self, losses: Any, count: Any = None, **options: Any) -> Any:
        """Run the backward pass of a micro-batch; see :meth:`maskgrad.GradientAccumulator.backward`.

        Returns:
            With the last micro-batch of a step, the mean over all micro-batches and ranks; else None.
        """
        super().backward(losses, count, **options)
        return self.finish() if self._accelerator.sync_gradients else None

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip the model's gradients, after unscaling; with ``fully_shard`` by the accelerator."""
        if str(getattr(self._accelerator.distributed_type, "value", "")) == "FSDP":
            return self._accelerator.clip_grad_norm_(self._model.parameters(), max_norm, norm_type)  # type: ignore[no-any-return]
        self._accelerator.unscale_gradients()
        return clip_grad_norm_(self._model.parameters(), max_norm, norm_type)
