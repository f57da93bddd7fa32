"""The history of updates: equal numbers are one entry, and every update comes back as it was."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import torch

from maskgrad.optim.lazy.history import History
from maskgrad.optim.rule import Hyperparameters
from tests.unit.optim.optimizers import numbers_of

SGD = numbers_of("SGD", lr=0.1, momentum=0.9, weight_decay=0.1)


def adam(**changes: Any) -> Hyperparameters:
    return numbers_of("AdamW", **({"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.0} | changes))


def keywords(history: History, first: int = 0) -> list[tuple[int, dict[str, Any]]]:
    return [(number, update.rule.keywords) for number, update in history.updates(first)]  # type: ignore[attr-defined]


def test_equal_steps_are_one_entry_and_come_back_with_their_numbers() -> None:
    history = History()
    for step in range(1, 1001):
        history.append(adam(), float(step), {})
    assert (len(history), history.runs) == (1000, 1)
    found = keywords(history, 990)
    assert [number for number, _ in found] == list(range(990, 1000))
    assert [k["step"] for _, k in found] == list(range(991, 1001))


def test_a_change_begins_an_entry() -> None:
    history = History()
    for step in range(1, 4):
        history.append(adam(), float(step), {})
    history.append(adam(lr=0.05), 4.0, {})
    history.append(adam(), 5.0, {})
    history.append(adam(), 9.0, {})  # a state was loaded: the count jumps
    assert (len(history), history.runs) == (6, 4)
    assert [(k["lr"], k["step"]) for _, k in keywords(history)] == [
        (0.1, 1.0), (0.1, 2.0), (0.1, 3.0), (0.05, 4.0), (0.1, 5.0), (0.1, 9.0),
    ]  # fmt: skip
    assert [number for number, _ in history.updates(0, last_of_runs=True)] == [2, 3, 4, 5]
    assert [number for number, _ in history.updates(4, last_of_runs=True)] == [4, 5]


def test_optimizers_that_count_no_steps() -> None:
    history = History()
    for _ in range(5):
        history.append(SGD, 0.0, {})
    history.append(replace(SGD, numbers={**SGD.numbers, "lr": 0.2}), 0.0, {})
    assert (len(history), history.runs) == (6, 2)
    assert [k["lr"] for _, k in keywords(history, 4)] == [0.1, 0.2]


def test_states_that_are_one_number_follow_from_each_other() -> None:
    numbers = numbers_of("NAdam", lr=0.1, betas=(0.9, 0.99), momentum_decay=0.1)
    product, expected = torch.tensor(1.0), []
    history = History()
    for step in range(1, 8):
        history.append(numbers, float(step), {"mu_product": product})
        update = numbers.update(float(step), mu_product=product)
        expected.append(update.rule.keywords)  # type: ignore[attr-defined]
        product.copy_(update.scalars["mu_product"])
    assert history.runs == 1
    assert [k for _, k in keywords(history)] == expected
    assert [k for _, k in keywords(history, 5)] == expected[5:]
    assert [update.rule.keywords for _, update in history.updates(0, last_of_runs=True)] == expected[-1:]  # type: ignore[attr-defined]


def test_it_can_be_cleared_and_pickled() -> None:
    history = History()
    assert (len(history), history.runs, keywords(history)) == (0, 0, [])
    history.append(SGD, 0.0, {})
    assert keywords(pickle.loads(pickle.dumps(history))) == keywords(history)
    history.clear()
    assert len(history) == 0
