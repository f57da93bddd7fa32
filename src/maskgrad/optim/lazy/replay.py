"""Steps with gradient zero, one by one, by the rule itself: for rules, or numbers, that have no closed form.

Rows are sorted by the step at which they fell idle, so that each step works on those that missed it and no others:
the work is the sum of the gaps, what the dense optimizer would have spent on these rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskgrad.optim.lazy.history import History

__all__ = ["replay_"]


def replay_(tensors: Sequence[Tensor], since: Tensor, history: History) -> None:
    """Give rows the updates that they missed, in place.

    Args:
        tensors: parameter and states (n, *row), of the computing dtype.
        since: number of the first update that a row missed (n,), int64.
        history: all updates.
    """
    if len(since) == 0:
        return
    ordered, order = since.sort()
    rows = [t[order] for t in tensors]
    starts = ordered.tolist()
    zeros = torch.zeros_like(rows[0])
    late, n = 0, len(starts)
    final = history.last_of_runs(starts[0]) if history.is_idempotent else history.updates(starts[0])
    for number, update in final:
        while late < n and starts[late] <= number:
            late += 1
        if late:
            update.rule(rows[0][:late], zeros[:late], *(state[:late] for state in rows[1:]))
    for t, row in zip(tensors, rows, strict=True):
        t[order] = row
