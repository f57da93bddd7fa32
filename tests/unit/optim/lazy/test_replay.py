"""Replaying missed steps: each row gets those it missed, in their order, and no other."""

from __future__ import annotations

import torch

from maskgrad.optim.lazy.history import History, replay_
from maskgrad.optim.rule import Hyperparameters, Rule
from tests.unit.optim.optimizers import numbers_of


def history_of(*rates: float) -> History:
    history = History()
    for lr in rates:
        history.append(numbers_of("SGD", lr=lr, weight_decay=1.0), 0.0, {})
    return history


def test_each_row_gets_what_it_missed() -> None:
    history = history_of(0.5, 0.5, 0.9, 0.1)
    param = torch.ones(5, 2)
    replay_([param], torch.tensor([3, 0, 4, 2, 0]), history)
    expected = [0.9, 0.5 * 0.5 * 0.1 * 0.9, 1.0, 0.1 * 0.9, 0.5 * 0.5 * 0.1 * 0.9]
    torch.testing.assert_close(param, torch.tensor(expected).unsqueeze(1).expand(5, 2))


def test_the_work_is_the_sum_of_the_gaps() -> None:
    seen = []

    def rule_(param: torch.Tensor, *rest: torch.Tensor) -> None:
        seen.append(len(param))

    history = History()
    for _ in range(4):
        history.append(Hyperparameters(Rule(rule_, (), counts_steps=False), {}), 0.0, {})
    replay_([torch.ones(3, 2)], torch.tensor([3, 1, 3]), history)
    assert seen == [1, 1, 3]


def test_nothing_to_do() -> None:
    replay_([torch.ones(0, 2)], torch.empty(0, dtype=torch.int64), history_of(0.5))
    param = torch.ones(1, 2)
    replay_([param], torch.tensor([1]), history_of(0.5))
    assert torch.equal(param, torch.ones(1, 2))


def test_a_rule_that_rests_after_one_step_is_asked_once_per_change() -> None:
    history = History()
    for number in range(100):
        largest = 0.5 if number < 50 else 0.2
        numbers = numbers_of("Rprop", lr=0.1, step_sizes=(1e-6, largest))
        history.append(numbers, float(number + 1), {})
    param, prev, size = torch.ones(2, 1), torch.ones(2, 1), torch.tensor([[0.7], [0.7]])
    replay_([param, prev, size], torch.tensor([10, 60]), history)
    assert torch.equal(param, torch.ones(2, 1))
    assert torch.equal(prev, torch.zeros(2, 1))
    assert torch.equal(size, torch.tensor([[0.2], [0.2]]))
