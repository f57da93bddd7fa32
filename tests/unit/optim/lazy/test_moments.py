"""Idle steps of Adam's kin: the series, its bound, the frozen columns and the sum, against a loop over steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from maskgrad.optim.lazy.moments import MomentStep, MomentTable
from tests.effort import examples

Schedule = Callable[[int], float]


def steps(
    number: int,
    first: int = 0,
    lr: Schedule = lambda t: 0.01,
    betas: Callable[[int], tuple[float, float]] = lambda t: (0.9, 0.999),
    eps: float = 1e-8,
    decay: float = 0.1,
    maximum: bool = False,
) -> list[MomentStep]:
    """Adam's steps number ``first`` + 1 and on."""
    found = []
    for t in range(first + 1, first + number + 1):
        beta1, beta2 = betas(t)
        found.append(
            MomentStep(
                lr(t) / (1 - beta1**t),
                1 / math.sqrt(1 - beta2**t),
                1 - lr(t) * decay,
                beta1,
                beta2,
                eps,
                maximum,
            )
        )
    return found


def table_of(several: list[MomentStep], precision: float = 2.0**-53) -> MomentTable:
    table = several[0].new_table(2, precision)
    for step in several:
        assert table.fits(step)
        table.append(step)
    return table


def loop(several: list[MomentStep], tensors: list[Tensor]) -> None:
    for step in several:
        tensors[1] *= step.beta1
        tensors[2] *= step.beta2
        tensors[0] *= step.decay
        tensors[0] -= step.size * tensors[1] / (step.root * tensors[-1].sqrt() + step.eps)


def entries(rows: int, maximum: bool = False) -> list[Tensor]:
    """Moments as they come about, from nothing at all to large, eps below and above the root."""
    source = torch.Generator().manual_seed(3)
    m = torch.randn(rows, 12, generator=source, dtype=torch.float64)
    p = torch.zeros_like(m)  # so that rounding does not hide how far it is moved
    scale = 10.0 ** torch.arange(-10, 2, dtype=torch.float64)
    m = m * scale
    v = m.square() * torch.rand(rows, 12, generator=source, dtype=torch.float64) * 10
    v[:, 0] = m[:, 0] = 0
    return [p, m, v, v * 2] if maximum else [p, m, v]


def compare(several: list[MomentStep], since: list[int], precision: float, tolerance: float) -> MomentTable:
    """``tolerance`` is relative to how far a row moved."""
    table = table_of(several, precision)
    found, expected = entries(len(since), several[0].maximum), entries(len(since), several[0].maximum)
    table.apply_(found, torch.tensor(since))
    for row, s in enumerate(since):
        loop(several[s:], [t[row] for t in expected])
    moved = expected[0].abs() + 1e-300
    assert ((found[0] - expected[0]).abs() / moved).max() < tolerance
    for a, b in zip(found[1:3], expected[1:3], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-200)
    return table


@pytest.mark.parametrize("maximum", [False, True])
@pytest.mark.parametrize("first", [0, 100, 10_000])
def test_gaps_of_every_length(first: int, maximum: bool) -> None:
    several = steps(900, first, maximum=maximum)
    compare(several, [0, 1, 5, 50, 500, 700, 880, 890, 895, 898, 899], 2.0**-53, 1e-11)
    compare(several, [0, 1, 5, 50, 500, 700, 880, 890, 895, 898, 899], 2.0**-24, 1e-7)


def test_gaps_of_ten_thousand_steps() -> None:
    compare(steps(10_000), [0], 2.0**-53, 1e-11)


@pytest.mark.parametrize(
    "lr",
    [
        lambda t: 1e-6 * t,
        lambda t: 0.01 * 0.99**t,
        lambda t: 0.01 * (1 + math.cos(t / 20)),
        lambda t: 0.01 * (t % 50 == 0),
        lambda t: 0.0,
    ],
    ids=["rising", "falling", "to 0 and back", "seldom", "never"],
)
def test_learning_rates_change(lr: Schedule) -> None:
    compare(steps(600, 2000, lr=lr), [0, 100, 400, 590, 599], 2.0**-53, 1e-9)


def test_betas_change() -> None:
    def betas(t: int) -> tuple[float, float]:
        return (0.85 + 0.1 * math.sin(t / 30), 0.99 + 0.009 * math.cos(t / 50))

    compare(steps(600, 1000, betas=betas), [0, 100, 400, 590, 599], 2.0**-53, 1e-9)


@pytest.mark.parametrize("betas", [(0.99, 0.9), (0.999, 0.99), (0.0, 0.9), (0.5, 0.3)])
def test_ordinary_and_strange_betas(betas: tuple[float, float]) -> None:
    compare(steps(300, 50, betas=lambda t: betas), [0, 100, 290, 299], 2.0**-53, 1e-9)


@settings(max_examples=examples(60))
@given(
    beta1=st.floats(0, 0.995),
    beta2=st.floats(0.3, 0.9999),
    eps=st.sampled_from([1e-15, 1e-8, 1e-3, 1.0]),
    first=st.integers(0, 3000),
    number=st.integers(1, 200),
    maximum=st.booleans(),
)
def test_any_numbers(beta1: float, beta2: float, eps: float, first: int, number: int, maximum: bool) -> None:
    several = steps(number, first, betas=lambda t: (beta1, beta2), eps=eps, maximum=maximum)
    compare(several, sorted({0, number // 2, number - 1}), 2.0**-24, 1e-6)


def test_the_remainder_of_the_series_is_below_its_bound() -> None:
    """For every column, every order and any root; where the bound is rough it is never too small."""
    several = steps(400, 20)
    table = table_of(several, 2.0**-24)
    table._centre(table._open, table.steps)
    x = np.logspace(-12, 3, 60)
    for column in (0, 10, 100, 300, 390, 398):
        until = int(table._until[column]) if column < table._open else table.steps
        k = np.arange(column + 1, until + 1)
        w = table._sizes[0, k - 1] * np.exp(
            table._logs[1, k] - table._logs[1, column] + table._logs[0, until] - table._logs[0, k]
        )
        a = table._sizes[1, k - 1] * np.exp(0.5 * (table._logs[2, k] - table._logs[2, column]))
        exact = (w / (x[:, None] * a + 1e-8)).sum(1)
        mean = (w * a).sum() / w.sum()
        z = mean * x / (mean * x + 1e-8)
        for order in (1, 3, 5, 7):
            terms = [(w * (a - mean) ** j).sum() / (-mean) ** j for j in range(order + 2)]
            series = sum(z**j * term for j, term in enumerate(terms[:-1]))
            remainder = np.abs(exact * (mean * x + 1e-8) - series)
            bound = mean / a.min() * terms[-1]
            assert (remainder <= bound + 1e-14 * w.sum()).all()
            if order <= table._order[column]:
                np.testing.assert_allclose(
                    table._terms[order, column], terms[order], rtol=1e-6, atol=1e-12 * w.sum()
                )
        if table._order[column]:
            j = int(table._order[column])
            rest = mean / a.min() * (w * (a - mean) ** (j + 1)).sum() / mean ** (j + 1)
            assert rest <= 1.01 * table.precision * w.sum()


def test_what_a_frozen_column_leaves_out_is_below_its_bound() -> None:
    several = steps(1200, 5000, decay=0.0)
    table = table_of(several, 2.0**-24)
    assert 100 < table.steps - table._open < 400
    q = 0.9 / math.sqrt(0.999)
    left_out = q ** (table._until[0] + 1) / (1 - q)
    assert left_out <= table.precision / 64
    assert table._until[0] < 300


def test_recording_a_step_costs_what_is_open_not_what_was_ever_recorded() -> None:
    table = table_of(steps(3000, 10_000), 2.0**-24)
    assert table.steps - table._open < 400
    table._centre(table._open, table.steps)
    assert table._order[: table.steps].min() > 0  # the series serves every column, in the steady state


def test_the_sum_serves_the_first_steps_of_a_run() -> None:
    table = table_of(steps(500), 2.0**-24)
    table._centre(table._open, table.steps)
    assert table._order[0] == 0
    assert table._order[450] > 0


def test_other_numbers_do_not_fit() -> None:
    (step,) = steps(1)
    table = step.new_table(2, 1e-7)
    assert not table.fits(steps(1, eps=1e-3)[0])
    assert not table.fits(steps(1, maximum=True)[0])
    assert not step.changes_nothing()
