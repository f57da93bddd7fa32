"""Lightning Fabric: its loop, with an accumulator instead of ``fabric.backward``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from maskgrad.gradients import GradientAccumulator
from maskgrad.gradients.accumulated_losses import Mean

__all__ = ["FabricAccumulator"]


class FabricAccumulator(GradientAccumulator):
    """A :class:`maskgrad.GradientAccumulator` for a model from ``fabric.setup``.

    Call ``backward`` with unreduced losses, or a mean and its count, instead of ``fabric.backward(loss)``, and
    ``finish`` before the optimizer's step. ``fabric.no_backward_sync`` is not needed.

    Args:
        fabric: the ``Fabric``, whose precision plugin and scaler are used.
        model: the result of ``fabric.setup`` or ``fabric.setup_module``.
        mean: as in :class:`maskgrad.GradientAccumulator`.

    Raises:
        ValueError: the strategy runs the backward pass itself (DeepSpeed).

    Source: https://lightning.ai/docs/fabric/stable/advanced/gradient_accumulation.html
    """

    def __init__(self, fabric: Any, model: Any, *, mean: Mean = "entry") -> None:
        strategy = fabric.strategy
        if type(strategy).__name__ in ("DeepSpeedStrategy", "XLAFSDPStrategy", "XLAStrategy"):
            raise ValueError(
                f"FabricAccumulator: {type(strategy).__name__} runs the backward pass and reduces gradients by itself; "
                "use DDPStrategy, ModelParallelStrategy or one device"
            )
        super().__init__(
            getattr(model, "_forward_module", model),
            scaler=getattr(strategy.precision, "scaler", None),
            mean=mean,
        )
        self._fabric_module = model

    def backward(self, losses: Any, count: Any = None, **options: Any) -> None:
        """Run the backward pass of a micro-batch; see :meth:`maskgrad.GradientAccumulator.backward`."""
        with self._known_to_fabric():
            super().backward(losses, count, **options)

    @contextlib.contextmanager
    def _known_to_fabric(self) -> Iterator[None]:
        """With mixed precision, outputs of a model raise in backward passes other than ``fabric.backward``."""
        wrappers: Any = sys.modules[type(self._fabric_module).__module__]
        before = getattr(wrappers, "_in_fabric_backward", None)
        if before is None:
            yield
            return
        wrappers._in_fabric_backward = True
        try:
            yield
        finally:
            wrappers._in_fabric_backward = before
