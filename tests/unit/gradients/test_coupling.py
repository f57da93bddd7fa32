"""The probe finds every pair of samples that influence each other, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maskgrad as mg


def _deep(x: Tensor) -> Tensor:
    for _ in range(30):
        x = nn.Linear(6, 6, dtype=x.dtype)(x).tanh()
    return x


COUPLED: dict[str, Callable[[Tensor], Tensor]] = {
    "statistics of the batch": lambda x: (x - x.mean(0)) / x.std(0),
    "the neighbour": lambda x: x * x.roll(1, 0),
    "the last sample alone": lambda x: torch.cat([x[:-1], x[:1] * x[-1:]]),
    "one output of many": lambda x: torch.stack([x.sum(1), x.prod(1), x.sum(1) + 1e-3 * x.mean()], 1),
    "a little": lambda x: x.sin() + 1e-4 * x.mean(0),
}
INDEPENDENT: dict[str, Callable[[Tensor], Tensor]] = {
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "rounding errors of a softmax": lambda x: (10 * x).softmax(1).sum(1),
    "rounding errors of half precision": lambda x: F.layer_norm(x.bfloat16(), x.shape[1:]).sum(1),
    "deep": _deep,
    "sizes far apart": lambda x: x * torch.logspace(-15, 15, len(x))[:, None],
    "neighbours in the sample": lambda x: x * x.roll(1, 1) / x.abs().max(1, keepdim=True).values,
    "a mixture with weight zero": lambda x: torch.eye(len(x)) @ x.sin(),
    "no number": lambda x: x * torch.where(torch.arange(len(x)) == 1, float("nan"), 1)[:, None],
}


def probe(function: Callable[[Tensor], Tensor], samples: int) -> None:
    x = torch.randn(samples, 6, requires_grad=True)
    mg.batched_grad(function(x), x)


@pytest.mark.parametrize("samples", [2, 17, 200])
@pytest.mark.parametrize("name", COUPLED)
def test_coupled(name: str, samples: int) -> None:
    with pytest.raises(mg.CoupledSamplesError, match="coupling='independent' gives"):
        probe(COUPLED[name], samples)


@pytest.mark.nondeterministic
@pytest.mark.parametrize("samples", [2, 17, 200])
@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent(name: str, samples: int) -> None:
    probe(INDEPENDENT[name], samples)


def test_any_single_pair_is_found() -> None:
    x = torch.randn(40, 2, dtype=torch.float64, requires_grad=True)
    for one, other in list(itertools.combinations(range(40), 2))[::7]:
        mixing = torch.eye(40, dtype=torch.float64)
        mixing[one, other] = 0.5
        y = mixing @ x
        with pytest.raises(mg.CoupledSamplesError, match="part of inputs changes"):
            mg.batched_grad(y, x)


def test_the_input_is_named() -> None:
    a, b = torch.randn(4, 2, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    y = a.sum(1) + (b - b.mean(0)).prod(1)
    with pytest.raises(mg.CoupledSamplesError, match=r"part of inputs\['b'\] changes"):
        mg.batched_grad(y, {"a": a, "b": b})
    assert mg.batched_grad(y, a).shape == (4, 2)
