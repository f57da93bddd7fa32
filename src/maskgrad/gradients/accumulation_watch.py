"""Detect steps and backward passes that must not happen while an accumulator exists."""

from __future__ import annotations

from collections import deque

from torch import Tensor
from torch.optim import Optimizer

from maskgrad.gradients.step_hooks import StepObserver, observe_steps, parameters_of

__all__ = ["SILENCED", "AccumulationWatch"]

_STEP = (
    "{optimizer}.step() before accumulator.finish(): the gradients are sums that are not divided yet; call finish() "
    "first, or accumulator.reset() to drop them"
)
SILENCED = (
    "a plain backward() ran, whose gradients are those of one rank: while a GradientAccumulator exists, only its "
    "finish() exchanges them; call accumulator.backward(losses), or delete the accumulator first (del accumulator)"
)


class AccumulationWatch(StepObserver):
    """Detects optimizer steps, and plain backward passes while wrappers are disabled, until :meth:`close`."""

    def __init__(self, params: list[Tensor], silenced: bool) -> None:
        self.accumulating = False
        self._ids = {id(param) for param in params}
        # A deque's method: a Python function per parameter would take a tenth of a small backward pass.
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

    def gradients_ready(self, optimizer: Optimizer) -> None:
        """Raise before a step with sums, or with gradients that were not exchanged."""
        if not (self.accumulating or self.touched) or not any(
            id(param) in self._ids for param in parameters_of(optimizer)
        ):
            return
        if self.accumulating:
            raise RuntimeError(_STEP.format(optimizer=type(optimizer).__name__))
        self.touched.clear()
        raise RuntimeError(SILENCED)
