"""Detects what must not happen between the first ``backward`` of an accumulator and its ``finish``."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from maskgrad.gradients.step_hooks import StepObserver, observe_steps, parameters_of

__all__ = ["CHANGED", "AccumulationWatch", "scale_moved"]

CHANGED = (
    "the gradients were changed between backward() and finish(), by zero_grad, clipping, unscale_ or a plain "
    "backward(). Call accumulator.backward(losses) for each micro-batch and the others after finish(), or "
    "accumulator.reset() now, to start again"
)

_STEP = (
    "{optimizer}.step() before accumulator.finish(): the gradients are sums that are not divided yet. Call finish() "
    "first, or accumulator.reset() to drop them"
)
_BEFORE = (
    "there was a plain backward() before accumulator.finish(): its gradient would be divided like that of a "
    "micro-batch. Call accumulator.backward(losses) instead, and accumulator.reset() now, to start again"
)
_SILENCED = (
    "there was a plain backward(), whose gradients are those of one rank: while a GradientAccumulator exists, only its "
    "finish() exchanges them. Call accumulator.backward(losses), or delete the accumulator first (del accumulator)"
)


class AccumulationWatch(StepObserver):
    """Watches parameters until :meth:`close`; ``silenced``: ranks do not exchange gradients of a plain ``backward``."""

    def __init__(self, params: Sequence[Tensor], silenced: bool) -> None:
        self.accumulating, self._silenced = False, silenced
        self._ids = {id(param) for param in params}
        # The hooks do not keep this object alive, and run in each backward pass: nothing is cheaper. In one process,
        # comparing the gradients between two passes is, and shows everything.
        self.touched: deque[Tensor] = deque(maxlen=1)
        self._hooks = [
            param.register_post_accumulate_grad_hook(self.touched.append)
            for param in params
            if silenced and param.requires_grad and param.is_leaf
        ]
        observe_steps(self)

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._ids = [], set()
        self.touched.clear()

    def error(self) -> Exception | None:
        """What is wrong, if there was a plain ``backward``."""
        if not self.touched:
            return None
        if self.accumulating:
            return RuntimeError(_BEFORE)
        return RuntimeError(_SILENCED) if self._silenced else None

    def gradients_ready(self, optimizer: Optimizer) -> None:
        """Raise before a step with sums, or with gradients that were not exchanged."""
        if not (self.accumulating or self._silenced) or not any(
            id(param) in self._ids for param in parameters_of(optimizer)
        ):
            return
        if self.accumulating:
            raise RuntimeError(_STEP.format(optimizer=type(optimizer).__name__))
        error = self.error()
        if error is not None:
            self.touched.clear()
            raise error


def scale_moved(scale: Tensor | None, scaler: Any) -> Exception | None:
    """An error if the scaler's scale is no longer that of the sums."""
    now = float(scaler.get_scale()) if scaler.is_enabled() else 1.0
    if scale is None or now == float(scale):
        return None
    return RuntimeError(
        f"the scaler's scale went from {float(scale)} to {now} between backward() and finish(); call "
        "scaler.update() after the step"
    )
