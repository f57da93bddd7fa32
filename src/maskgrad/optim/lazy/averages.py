"""Averages of parameters whose rows change only in some steps."""

from __future__ import annotations

import math
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from maskgrad.gradients.attached import current_gradient
from maskgrad.gradients.gradient import read, widened_dtype
from maskgrad.gradients.step_hooks import StepObserver
from maskgrad.optim.lazy.rows import bring_up_to_date
from maskgrad.optim.optimizer import MaskedOptimizer

__all__ = ["LazyAverage", "LazyAverages", "touched_rows"]

_PIECE = 1 << 17  # entries at a time: their copies stay in the cache


class LazyAverage:
    """The average of one parameter; each row is valid up to some update, since which its parameter has not changed."""

    def __init__(self, param: Tensor) -> None:
        self.param = param
        self.values = param.detach().to(widened_dtype(param.dtype), copy=True)
        self.done: float | Tensor = 0.0
        """The logarithm of the product of all decays up to that update: of all rows, or (R,) in float64."""

    @torch.no_grad()
    def bring_up(self, total: float, rows: Tensor | None = None) -> None:
        """Apply missed updates to all rows, or to the distinct ``rows``."""
        weights = self.param.detach()
        if self.values.device != weights.device:  # the module was moved
            self.values = self.values.to(weights.device)
            self.done = self.done if isinstance(self.done, float) else self.done.to(weights.device)
        if isinstance(self.done, float):
            if self.done == total or (rows is not None and len(rows) == 0):
                return
            if rows is not None and len(rows) < len(weights):
                self.done = torch.full((len(weights),), self.done, dtype=torch.float64, device=weights.device)
        if isinstance(self.done, float):
            self.values.lerp_(weights.to(self.values.dtype), -math.expm1(total - self.done))
            self.done = total
        elif rows is None:
            share = self._share(total - self.done)
            self.values.lerp_(weights.to(self.values.dtype), share)
            self.done = total
        else:
            for piece in rows.split(max(_PIECE // max(weights[0].numel(), 1), 1)):
                share = self._share(total - self.done[piece])
                near, far = (t.index_select(0, piece) for t in (self.values, weights))
                self.values.index_copy_(0, piece, torch.lerp(near, far.to(near.dtype), share))
                self.done[piece] = total

    def _share(self, missed: Tensor) -> Tensor:
        """Fraction of the distance to the weight, one value per row."""
        share = torch.expm1(missed).neg_().to(self.values.dtype)
        return share.view(-1, *(1 for _ in self.values.shape[1:]))


class LazyAverages(StepObserver):
    """Update averages with weights that a step is about to overwrite."""

    def __init__(self, averages: list[LazyAverage]) -> None:
        self.averages = averages
        self.total = 0.0
        """The logarithm of the product of the decays of all updates."""
        self.started = False
        self.applied = False
        self._by_param = {id(average.param): average for average in averages}

    def __getstate__(self) -> dict[str, Any]:
        kept = ("averages", "total", "started", "applied")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        LazyAverages.__init__(self, state["averages"])
        self.__dict__.update(state)

    def of(self, param: Tensor) -> LazyAverage | None:
        """The average of ``param``."""
        return self._by_param.get(id(param))

    def require_weights(self, what: str) -> None:
        """Raise a RuntimeError if the parameters hold their averages."""
        if self.applied:
            raise RuntimeError(
                f"{what} while the parameters hold their averages; leave `with average.applied():` first"
            )

    @torch.no_grad()
    def start(self) -> None:
        """Copy the current weights."""
        for average in self.averages:
            bring_up_to_date(average.param)
            average.values.copy_(average.param)
            average.done = self.total
        self.started = True

    def flush(self) -> None:
        """Update all rows."""
        if self.started and not self.applied:
            for average in self.averages:
                bring_up_to_date(average.param)
                average.bring_up(self.total)

    def before_step(self, optimizer: Optimizer) -> None:
        """Raise while the parameters hold their averages."""
        if self.applied and any(id(p) in self._by_param for g in optimizer.param_groups for p in g["params"]):
            self.require_weights("a step")

    def gradients_ready(self, optimizer: Optimizer) -> None:
        """Average the rows that are about to change, with their current values."""
        for group in optimizer.param_groups:
            mine = [average for average in map(self.of, group["params"]) if average is not None]
            for average in mine if self.started else ():
                rows = touched_rows(optimizer, group, average.param)
                if rows is None:
                    bring_up_to_date(average.param)
                average.bring_up(self.total, rows)


def touched_rows(optimizer: Optimizer, group: dict[str, Any], param: Tensor) -> Tensor | None:
    """Distinct rows (n,) of the first dimension that the next step may change; None: all of them.

    An entry without a gradient does not change under optimizers of ``mg.optim`` with ``unspecified="skip"``, and under
    those of ``torch.optim`` that are listed below. Any other optimizer may change every row.
    """
    ours = isinstance(optimizer, MaskedOptimizer)
    gradient = current_gradient(param, "a parameter") if ours else param.grad
    if gradient is None:
        return torch.empty(0, dtype=torch.int64, device=param.device)
    if param.dim() == 0 or not _leaves_the_rest_alone(optimizer, group):
        return None
    found = read(gradient, "gradient of a parameter")
    if not found.lists_rows or found.rows is None or found.leading == 0:
        return None
    within = prod(param.shape[1 : found.leading])
    rows = found.rows if within == 1 else found.rows.div(within, rounding_mode="floor")
    distinct: Tensor = rows.unique()
    return distinct


def _leaves_the_rest_alone(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    if isinstance(optimizer, MaskedOptimizer):
        return bool(group["unspecified"] == "skip")
    if type(optimizer) in (torch.optim.SparseAdam, torch.optim.Adagrad):
        return True
    plain = not group.get("momentum") and not group.get("weight_decay")
    return type(optimizer) is torch.optim.SGD and plain
