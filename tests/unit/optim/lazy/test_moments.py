"""Idle steps of Adam's kin: the series, the frozen columns and the sum, against a loop over steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from maskgrad.optim.lazy.moments import MomentStep
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


def compare(several: list[MomentStep], since: list[int], precision: float, tolerance: float) -> None:
    """``tolerance`` is relative to how far a row moved."""
    table = several[0].new_table(2, precision)
    for step in several:
        assert table.fits(step)
        table.append(step)
    found, expected = entries(len(since), several[0].maximum), entries(len(since), several[0].maximum)
    table.apply_(found, torch.tensor(since))
    for row, s in enumerate(since):
        loop(several[s:], [t[row] for t in expected])
    moved = expected[0].abs() + 1e-300
    assert ((found[0] - expected[0]).abs() / moved).max() < tolerance
    for a, b in zip(found[1:3], expected[1:3], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-200)


@pytest.mark.parametrize(
    "several",
    [
        steps(10_000),
        steps(600, 2000, lr=lambda t: 1e-6 * t),
        steps(600, 2000, lr=lambda t: 0.01 * 0.99**t),
        steps(600, 2000, lr=lambda t: 0.01 * (1 + math.cos(t / 20))),
        steps(600, 2000, lr=lambda t: 0.01 * (t % 50 == 0)),
        steps(600, 2000, lr=lambda t: 0.0),
        steps(
            600,
            1000,
            betas=lambda t: (0.85 + 0.1 * math.sin(t / 30), 0.99 + 0.009 * math.cos(t / 50)),
        ),
        *[
            steps(300, 50, betas=lambda t, pair=pair: pair)
            for pair in ((0.99, 0.9), (0.999, 0.99), (0.0, 0.9), (0.5, 0.3))
        ],
    ],
    ids=["long", "rising", "falling", "to 0 and back", "seldom", "never", "betas change", *"abcd"],
)
def test_numbers_change_and_are_strange(several: list[MomentStep]) -> None:
    number = len(several)
    compare(several, [0, number // 6, number - 10, number - 1], 2.0**-53, 1e-9)


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
