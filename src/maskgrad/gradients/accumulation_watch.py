"""Notices what must not happen between the first ``backward`` of an accumulator and its ``finish``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from maskgrad.gradients.around_step import StepObserver, observe_steps, parameters_of

__all__ = ["AccumulationWatch"]

_STEP = (
    "{optimizer}.step() before accumulator.finish(): the gradients are sums that nobody has divided yet. Call finish() "
    "first, or accumulator.reset() if the step is to be given up"
)
_BACKWARD = (
    "a plain backward() {when}: its gradient would be {what}. Call accumulator.backward(losses), or drop the "
    "accumulator first (del accumulator)"
)


class AccumulationWatch(StepObserver):
    """Watches parameters for as long as somebody refers to it, and :meth:`close` was not called.

    Args:
        params: the parameters.
        silenced: whether a plain ``backward`` would not be exchanged between ranks, as long as this lives.
    """

    def __init__(self, params: Sequence[Tensor], silenced: bool) -> None:
        self._ids = {id(param) for param in params}
        # What hooks see of this watch, which they do not keep alive: own pass under way, step under way.
        self.flags = _Flags(silenced)
        self._hooks = [
            param.register_post_accumulate_grad_hook(self.flags.accumulated)
            for param in params
            if param.requires_grad and param.is_leaf
        ]
        observe_steps(self)

    def close(self) -> None:
        """Look no longer."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._ids = set()

    def before_step(self, optimizer: Optimizer) -> None:
        """Refuse a step over sums."""
        if self.flags.accumulating and any(id(param) in self._ids for param in parameters_of(optimizer)):
            raise RuntimeError(_STEP.format(optimizer=type(optimizer).__name__))

    def before_closure(self, optimizer: Optimizer) -> None:
        """A closure may accumulate."""

    def gradients_ready(self, optimizer: Optimizer) -> None:
        """What the closure accumulated must be finished."""
        self.before_step(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """Nothing to do."""


class _Flags:
    __slots__ = ("accumulating", "own_pass", "silenced")

    def __init__(self, silenced: bool) -> None:
        self.own_pass = self.accumulating = False
        self.silenced = silenced

    def accumulated(self, _: Any) -> None:
        if self.own_pass or not (self.accumulating or self.silenced):
            return
        if self.accumulating:
            when, what = "before accumulator.finish()", "divided as if it were of a micro-batch"
        else:
            when, what = (
                "while a GradientAccumulator lives, which exchanges gradients itself",
                "that of one rank",
            )
        raise RuntimeError(_BACKWARD.format(when=when, what=what))
