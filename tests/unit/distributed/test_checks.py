"""Ranks that have drifted apart are told so, all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from tests.ranks import run_on_ranks


def _optimizers(rank: int, world_size: int, name: str) -> str:
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    lr: Any = 0.1 + 0.1 * (rank if name == "rate" else 0)
    if name == "tensor rate":
        lr = torch.tensor(0.1 * (1 + rank))
    kind = mg.optim.Adagrad if name == "class" and rank else mg.optim.Adam
    params = list(model.parameters())[rank if name == "parameters" else 0 :]
    optimizer: Any = kind(params, lr=lr)
    if name in ("state", "step", "left out"):
        for _ in range(1 + (rank if name == "step" else 0)):
            model(torch.ones(1, 2)).sum().backward()
            if name == "step" or not rank:
                optimizer.step()
    if name == "no optimizer" and rank:
        optimizer = model
    try:
        mg.distributed.check_optimizer(optimizer, state=name != "left out")
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "the same"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("same", "the same"),
        ("left out", "the same"),
        ("rate", "lr=0.1 in group 0"),
        ("tensor rate", "lr=a tensor of shape () and torch.float32 0.2"),
        ("class", "class Adagrad"),
        ("parameters", "(3, 2)"),
        ("state", "state 'exp_avg'"),
        ("step", "torch.float32 2.0"),
    ],
)
def test_optimizers(name: str, words: str) -> None:
    first, second = run_on_ranks(_optimizers, 2, name)
    assert first == second
    assert words in first


def test_other_objects_are_refused() -> None:
    first, second = run_on_ranks(_optimizers, 2, "no optimizer")
    assert "rank 1 raised an error" in first
    assert "found Linear" in second


def _parameters(rank: int, world_size: int, name: str) -> str:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with torch.no_grad():
        if name == "parameter" and rank:
            model[0].bias[1] = torch.nextafter(model[0].bias[1], torch.tensor(9.0))
        if name == "buffer" and rank:
            model[1].running_mean[0] = -0.0
    given: Any = list(model.parameters()) if name == "list" else model
    if name == "number":
        given = [3.0]
    try:
        mg.distributed.check_parameters(given)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "the same"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("same", "the same"),
        ("list", "the same"),
        ("parameter", "parameter '0.bias'"),
        ("buffer", "buffer '1.running_mean'"),
        ("number", "TypeError"),
    ],
)
def test_parameters(name: str, words: str) -> None:
    for found in run_on_ranks(_parameters, 2, name):
        assert words in found
