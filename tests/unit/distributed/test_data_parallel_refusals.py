"""What `prepare` refuses, in which order it exchanges, and what a broken gradient does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks
from tests.unit.distributed.trainings import WORDS, Tables, batches, loss_of, made, state


def _refused(rank: int, world_size: int, name: str) -> tuple[str, str]:
    module: Any = made(Tables)
    options: dict[str, Any] = {}
    if name == "size" and rank:
        module.table = nn.Embedding(WORDS + 1, 4, sparse=True)
    if name == "dtype" and rank:
        module.hidden.double()
    if name == "name" and rank:
        module.other = module.table
        del module.table
    if name == "option":
        options = {"find_unused_parameters": bool(rank)}
    if name == "unknown part" and not rank:
        options = {"sparse": ["taple"]}
    if name == "foreign" and rank:
        options = {"sparse": [nn.Linear(1, 1)]}
    if name == "no module" and rank:
        module = 3
    before = None if module == 3 else state(module)
    try:
        mg.distributed.prepare(module, **options)
    except Exception as error:
        found = type(error).__name__, str(error)
    if before is not None:
        assert torch.equal(state(module), before)
    return found


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("size", "ValueError", ["'table.weight' of shape (9, 4)", "(10, 4)"]),
        ("dtype", "ValueError", ["'hidden.weight'", "torch.float64"]),
        ("name", "ValueError", ["'table.weight'"]),
        ("option", "ValueError", ["find_unused_parameters=False", "find_unused_parameters=True"]),
        ("unknown part", "ValueError", ["'taple'"]),
        ("foreign", "ValueError", ["no such parameter"]),
        ("no module", "TypeError", ["found int"]),
    ],
)
def test_ranks_that_differ_are_refused_on_all_of_them(name: str, kind: str, words: list[str]) -> None:
    for found, text in run_on_ranks(_refused, 2, name):
        assert found == kind, text
        assert all(word in text for word in words), text


def _broken_gradient(rank: int, world_size: int) -> tuple[str, str]:
    module = made(Tables)
    broken = [rank == 1]

    def spoil(p: Tensor) -> None:
        if broken[0]:
            p.grad = torch.sparse_coo_tensor([[99]], torch.ones(1, 4), p.shape, check_invariants=False)

    module.seldom.weight.register_post_accumulate_grad_hook(spoil)
    alone = copy.deepcopy(module)
    loss_of(alone(batches(0, rank), seldom=True)).backward()
    model = mg.distributed.prepare(module)
    try:
        loss_of(model(batches(0, rank), seldom=True)).backward()
    except IndexError as error:
        text = str(error)
    # what had been sent before is not written either
    assert torch.equal(module.table.weight.grad.to_dense(), alone.table.weight.grad.to_dense())
    broken[0] = False
    for p in module.parameters():
        p.grad = None
    loss_of(model(batches(0, rank), seldom=True)).backward()  # all goes on
    return text, str(module.seldom.weight.grad.layout)


def test_a_broken_gradient_is_refused_on_all_ranks_and_training_goes_on() -> None:
    for text, layout in run_on_ranks(_broken_gradient, 2):
        assert "gradient of parameter 'seldom.weight'" in text
        assert "99" in text
        assert layout == "torch.sparse_coo"


class Undeclared(nn.Linear):
    """A layer that pretends to be one of torch.nn."""

    def forward(self, words: Tensor) -> Tensor:
        return F.embedding(words, self.weight, sparse=True).sum()


Undeclared.__module__ = "torch.nn.modules.linear"


def _undeclared(rank: int, world_size: int) -> str:
    torch.manual_seed(0)
    module = Undeclared(2, 3, bias=False)
    model = mg.distributed.prepare(module)
    try:
        model(torch.tensor([0, 1])).backward()
    except RuntimeError as error:
        text = str(error)
    module = copy.deepcopy(module)
    model = mg.distributed.prepare(module, sparse=["weight"])
    model(torch.tensor([0, 1])).backward()
    assert module.weight.grad is not None
    assert module.weight.grad.is_sparse
    return text


def test_an_undeclared_sparse_gradient_is_refused_by_name() -> None:
    for text in run_on_ranks(_undeclared, 2):
        assert "'weight'" in text
        assert "sparse=['weight']" in text
