"""Every closed form, for one step: it does what the rule does when the gradient is zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from maskgrad import optim
from tests.unit.optim.optimizers import DECLARED

CLOSED = {
    "SGD": [
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "maximize": True},
        {"momentum": 0.9},
        {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
        {"momentum": 0.9, "weight_decay": 0.1, "dampening": 0.3},
    ],
    "Adagrad": [{}],
    "Adam": [{}, {"amsgrad": True}, {"betas": (0.0, 0.9)}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "AdamW": [{"weight_decay": 0.3}, {"weight_decay": 0.3, "amsgrad": True, "maximize": True}],
    "RMSprop": [{}, {"centered": True}, {"momentum": 0.9}, {"momentum": 0.9, "centered": True}],
    "Adadelta": [{}],
    "NAdam": [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RAdam": [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "ASGD": [{"lambd": 0.1, "t0": 2}, {"weight_decay": 0.1}],
    "Lion": [{}, {"weight_decay": 0.1}],
}  # fmt: skip
REPLAYED = {
    "Adagrad": {"weight_decay": 0.1},
    "Adam": {"weight_decay": 0.1},
    "RMSprop": {"weight_decay": 0.1},
    "Adadelta": {"weight_decay": 0.1},
    "Adamax": {},
    "NAdam": {"weight_decay": 0.1},
    "RAdam": {"weight_decay": 0.1},
    "Rprop": {},
}


def bound(name: str, options: dict[str, Any], step: float) -> tuple[Any, list[torch.Tensor]]:
    """The update of this step, and plausible states (v and its kin are not negative)."""
    param = torch.nn.Parameter(torch.randn(4, 3, dtype=torch.float64))
    optimizer = getattr(optim, name)([param], lr=0.1, **options)
    numbers = optimizer._read_group(optimizer.param_groups[0])
    scalars = {
        key: torch.tensor(0.5 if key == "mu_product" else value) for key, value in numbers.scalars.items()
    }
    squares = {"square_avg": 1.0, "exp_avg_sq": 1.0, "max_exp_avg_sq": 10.0, "acc_delta": 1.0, "sum": 1.0}
    states = []
    for declared in numbers.states:
        value = torch.randn(4, 3, dtype=torch.float64)
        if declared.name in squares:
            value = value.square() + squares[declared.name]
        states.append(value * 0.1 if declared.name == "grad_avg" else value)
    return numbers.update(step, **scalars), [param.detach(), *states]


@pytest.mark.parametrize(
    ("name", "options"), [(name, o) for name, several in CLOSED.items() for o in several]
)
@pytest.mark.parametrize("step", [7.0, 1000.0])
def test_one_step_with_gradient_zero(name: str, options: dict[str, Any], step: float) -> None:
    update, tensors = bound(name, options, step)
    closed = update.closed_form(len(tensors) - 1)
    assert closed is not None
    expected = [t.clone() for t in tensors]
    update.rule(expected[0], torch.zeros(4, 3, dtype=torch.float64), *expected[1:])
    if closed.changes_nothing():
        assert all(torch.equal(a, b) for a, b in zip(tensors, expected, strict=True))
        return
    table = closed.new_table(len(tensors) - 1, 1e-16)
    assert table.fits(closed)
    table.append(closed)
    table.apply_(tensors, torch.zeros(4, dtype=torch.int64))
    for found, wanted in zip(tensors, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "options"), REPLAYED.items())
def test_no_closed_form_is_claimed_where_there_is_none(name: str, options: dict[str, Any]) -> None:
    update, tensors = bound(name, options, 100.0)
    assert update.closed_form(len(tensors) - 1) is None


@pytest.mark.parametrize(
    ("name", "options", "step"),
    [
        ("AdamW", {"weight_decay": 12.0}, 9.0),  # the parameter changes its sign
        ("Adam", {"betas": (0.9, 0.0)}, 9.0),  # no second moment is left
        ("RAdam", {}, 3.0),  # not yet rectified
        ("Adagrad", {"eps": 0.0}, 9.0),  # 0 / 0
        ("Lion", {"betas": (0.9, 0.0)}, 9.0),  # the sign of 0
    ],
)
def test_numbers_without_a_closed_form(name: str, options: dict[str, Any], step: float) -> None:
    update, tensors = bound(name, options, step)
    assert update.closed_form(len(tensors) - 1) is None


def test_the_marker_of_started_buffers_has_no_closed_form() -> None:
    update, _ = bound("SGD", {"momentum": 0.9, "dampening": 0.5}, 0.0)
    assert update.closed_form(2) is None


def test_rules_that_rest_after_one_step() -> None:
    assert {one.ours.__name__ for one in DECLARED if one.ours._rule.is_idempotent} == {"Rprop"}
    update, tensors = bound("Rprop", {}, 5.0)
    zeros = torch.zeros(4, 3, dtype=torch.float64)
    update.rule(tensors[0], zeros, *tensors[1:])
    once = [t.clone() for t in tensors]
    update.rule(tensors[0], zeros, *tensors[1:])
    assert all(torch.equal(a, b) for a, b in zip(tensors, once, strict=True))


def test_every_optimizer_is_in_one_of_the_lists() -> None:
    assert {one.ours.__name__ for one in DECLARED} == {*CLOSED, *REPLAYED}
