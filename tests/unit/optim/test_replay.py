"""Replaying missed steps: each row gets those it missed, in their order, and no other."""

from __future__ import annotations

import torch

from maskgrad.optim.history import History
from maskgrad.optim.replay import replay_
from maskgrad.optim.rprop import RpropNumbers
from maskgrad.optim.sgd import SGDNumbers


def history_of(*rates: float) -> History:
    history = History()
    for lr in rates:
        history.append(
            SGDNumbers(lr=lr, momentum=0.0, dampening=0.0, weight_decay=1.0, nesterov=False), 0.0, {}
        )
    return history


def test_each_row_gets_what_it_missed() -> None:
    history = history_of(0.5, 0.5, 0.9, 0.1)
    param = torch.ones(5, 2)
    replay_([param], torch.tensor([3, 0, 4, 2, 0]), history)
    expected = [0.9, 0.5 * 0.5 * 0.1 * 0.9, 1.0, 0.1 * 0.9, 0.5 * 0.5 * 0.1 * 0.9]
    torch.testing.assert_close(param, torch.tensor(expected).unsqueeze(1).expand(5, 2))


def test_the_work_is_the_sum_of_the_gaps() -> None:
    seen = []

    class Watched(SGDNumbers):
        def update(self, step: float = 0.0, **scalars: torch.Tensor):  # type: ignore[no-untyped-def]
            update = super().update(step, **scalars)

            def rule(param: torch.Tensor, *rest: torch.Tensor) -> None:
                seen.append(len(param))

            return type(update)(rule)

    history = History()
    for _ in range(4):
        history.append(
            Watched(lr=0.1, momentum=0.0, dampening=0.0, weight_decay=1.0, nesterov=False), 0.0, {}
        )
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
        history.append(
            RpropNumbers(lr=0.1, eta_minus=0.5, eta_plus=1.2, step_size_min=1e-6, step_size_max=largest),
            float(number + 1),
            {},
        )
    param, prev, size = torch.ones(2, 1), torch.ones(2, 1), torch.tensor([[0.7], [0.7]])
    replay_([param, prev, size], torch.tensor([10, 60]), history)
    assert torch.equal(param, torch.ones(2, 1))
    assert torch.equal(prev, torch.zeros(2, 1))
    assert torch.equal(size, torch.tensor([[0.2], [0.2]]))
