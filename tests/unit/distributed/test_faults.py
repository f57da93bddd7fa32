"""A rank that ends or hangs in the middle of a step: the others get an error, and nothing is half done."""

from __future__ import annotations

import datetime
import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import ANSWER_TIMEOUT_S, Failure, outcomes_on_fresh_ranks

WORDS = torch.tensor([1, 2])


class Model(nn.Module):
    """Two tables, one on each side of a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Embedding(6, 2, sparse=True)
        self.middle = nn.Linear(2, 2)
        self.last = nn.Embedding(6, 2, sparse=True)

    def forward(self, words: Tensor) -> Tensor:
        return (self.middle(self.first(words)) * self.last(words)).sum()


def end(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _ends(rank: int, world_size: int, where: str) -> str:
    model = Model()
    optimizer = mg.optim.Adagrad(model.parameters(), lr=0.1)
    gradients: list[Tensor] = []
    if where == "in the backward pass":
        prepared = mg.distributed.prepare(model)
        prepared(WORDS).backward()  # once it goes well
        optimizer.zero_grad()
        if rank == 1:  # the exchange of the last table is under way, that of the first is still to come
            model.middle.weight.register_hook(end)
        step: Any = prepared(WORDS).backward
    elif where == "before an exchange":
        model(WORDS).backward()
        gradients = [p.grad.to_dense().clone() for p in model.parameters()]
        if rank == 1:
            os._exit(3)
        step = functools.partial(mg.distributed.all_reduce_gradients, model)
    else:
        step = mg.distributed.mean(model(WORDS)).backward
        if rank == 1:
            end()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(mg.errors.LostRankError) as raised:
        step()
    for p, gradient in zip(model.parameters(), gradients, strict=False):
        assert torch.equal(p.grad.to_dense(), gradient)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert not any(state["step"] for state in optimizer.state.values())
    return str(raised.value)


@pytest.mark.parametrize("where", ["before an exchange", "in the backward pass", "in a loss"])
def test_a_rank_that_ends_is_an_error_on_the_others(where: str) -> None:
    alive, dead = outcomes_on_fresh_ranks(_ends, 2, where)
    assert isinstance(dead, Failure)
    assert dead.died
    assert isinstance(alive, str), alive
    assert "failed on rank 0 of 2" in alive


def _hangs(rank: int, world_size: int, noticed: Path) -> str:
    """The exchange waits as long as the group, or as it is told."""
    usual = mg.distributed.prepare(Model())
    prepared = mg.distributed.prepare(Model(), timeout=datetime.timedelta(milliseconds=2345))
    waits = [model._exchange.group.timeout().total_seconds() for model in (usual, prepared)]
    assert waits == [10 * ANSWER_TIMEOUT_S, 2.345]
    if rank == 1:
        while not noticed.exists():  # it neither takes part nor ends before the other has noticed
            time.sleep(0.1)
        os._exit(4)
    with pytest.raises(mg.errors.LostRankError) as raised:
        prepared(WORDS).backward()
    noticed.touch()
    return str(raised.value)


def test_a_rank_that_hangs_is_an_error_after_the_timeout(tmp_path: Path) -> None:
    # the group would wait for longer than we wait for an answer: it can only come of the exchange's own timeout
    alive, hanging = outcomes_on_fresh_ranks(
        _hangs, 2, tmp_path / "noticed", group_timeout_s=10 * ANSWER_TIMEOUT_S
    )
    assert isinstance(hanging, Failure)
    assert isinstance(alive, str), alive
    # what gloo adds depends on which of its threads notices first: "Timed out waiting 2345ms", or that a pair closed
    assert "did not respond within the group's timeout" in alive
