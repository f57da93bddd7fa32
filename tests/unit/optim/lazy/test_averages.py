"""What is touched, and who is watched."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.optim import ExponentialMovingAverage


def test_only_rows_that_move_are_touched() -> None:
    table = nn.Embedding(1000, 2, sparse=True)
    optimizer = mg.optim.SGD(table.parameters(), lr=0.1)
    ema = ExponentialMovingAverage(table.parameters(), 0.5)
    ema.update()
    average = ema._tracker.averages[0]
    for rows in ([3, 5], [5, 5, 7], [3]):
        optimizer.zero_grad()
        table(torch.tensor(rows)).sum().backward()
        before = average.values.clone()
        optimizer.step()
        ema.update()
        changed = (average.values != before).any(1).nonzero().view(-1).tolist()
        assert set(changed) <= set(rows)
    assert isinstance(average.done, Tensor)
    assert (average.done != 0).nonzero().view(-1).tolist() == [3, 5, 7]


def test_who_is_gone_watches_no_steps() -> None:
    from maskgrad.gradients import step_hooks

    p = nn.Parameter(torch.ones(2))
    before = len(step_hooks._observers)
    ema = ExponentialMovingAverage([p], 0.9)
    assert len(step_hooks._observers) == before + 1
    del ema
    assert len(step_hooks._observers) == before
