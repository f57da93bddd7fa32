"""The updates of a parameter, run-length encoded, and their replay for rows that missed them.

Hyperparameters seldom change from one step to the next: consecutive steps with equal numbers are one entry. Under a
learning-rate schedule every step is a separate entry; ``rows.py`` bounds the length of a history.

Steps with gradient zero are replayed one by one, with the rule itself, if there is no closed form. Rows are sorted by
the first step that they missed, so that each step applies to those that missed it only: the work is the sum of
the gaps, the same as in the dense optimizer for these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maskgrad.optim.rule import Hyperparameters, Update

__all__ = ["History", "replay_"]


@dataclass(slots=True)
class _Run:
    """Updates number ``start`` to ``start + count - 1`` of the history: equal numbers, consecutive steps."""

    start: int
    count: int
    numbers: Hyperparameters
    step: float
    scalars: dict[str, Tensor]
    """Scalar states before the first update of the run."""


class History:
    """Updates in order, counted from 0. ``len()`` is their number, ``runs`` that of stored entries."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return self._runs[-1].start + self._runs[-1].count if self._runs else 0

    @property
    def runs(self) -> int:
        """Number of stored entries."""
        return len(self._runs)

    def append(self, numbers: Hyperparameters, step: float, scalars: Mapping[str, Tensor]) -> None:
        """Record ``numbers.update(step, **scalars)``, with ``scalars`` from before it."""
        last = self._runs[-1] if self._runs else None
        if last is not None and last.numbers == numbers and last.step + _stride(numbers) * last.count == step:
            last.count += 1
        else:
            kept = {name: value.clone() for name, value in scalars.items()}
            self._runs.append(_Run(len(self), 1, numbers, step, kept))

    def updates(self, first: int, last_of_runs: bool = False) -> Iterator[tuple[int, Update]]:
        """Iterate over index and update, from ``first`` on; or only the last of each run."""
        for run in self._runs:
            start, stop, stride = first, run.start + run.count, _stride(run.numbers)
            if last_of_runs:
                start = max(first, stop - 1)
            scalars = run.scalars
            # A scalar state depends on the previous one, so runs with any are computed from their start.
            for number in range(run.start if scalars and start < stop else max(run.start, start), stop):
                update = run.numbers.update(run.step + stride * (number - run.start), **scalars)
                scalars = {name: value.clone().copy_(update.scalars[name]) for name, value in scalars.items()}
                if number >= start:
                    yield number, update

    @property
    def is_idempotent(self) -> bool:
        """Return whether repeating each of the updates with gradient zero changes nothing."""
        return all(run.numbers.rule.is_idempotent for run in self._runs)

    def clear(self) -> None:
        """Remove all updates: indices start from 0 again."""
        self._runs.clear()


def _stride(numbers: Hyperparameters) -> int:
    """Increment of the step count: 0 for optimizers that count no steps."""
    return 1 if numbers.rule.counts_steps else 0


def replay_(tensors: Sequence[Tensor], since: Tensor, history: History) -> None:
    """Apply the updates since ``since`` (n,) to rows of parameter and states (n, *row), in place."""
    if len(since) == 0:
        return
    ordered, order = since.sort()
    rows = [t[order] for t in tensors]
    starts = ordered.tolist()
    zeros = torch.zeros_like(rows[0])
    late, n = 0, len(starts)
    # An idempotent rule changes nothing in a second such step.
    for number, update in history.updates(starts[0], last_of_runs=history.is_idempotent):
        while late < n and starts[late] <= number:
            late += 1
        if late:
            update.rule(rows[0][:late], zeros[:late], *(state[:late] for state in rows[1:]))
    for t, row in zip(tensors, rows, strict=True):
        t[order] = row
