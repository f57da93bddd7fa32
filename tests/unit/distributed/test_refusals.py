"""What is wrong on one rank is an error on all, which says what it is; nothing changes, and the group goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks
from tests.unit.distributed.trainings import WORDS, Tables, made, state

d = mg.distributed
ONE, F32, F64 = torch.tensor([1]), torch.float32, torch.float64


def coo(at: int) -> Tensor:
    return torch.sparse_coo_tensor([[at]], [1.0], (3,), check_invariants=False)


def gradients(rank: int, change: Callable[[list[Any]], Any] = lambda params: None) -> None:
    """The average of two gradients, of which those of rank 1 have been changed, or their list replaced."""
    params = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
    for p in params:
        p.grad = torch.full((3,), float(rank))
    try:
        d.all_reduce_gradients((rank and change(params)) or params)
    finally:
        assert params[0].grad is not None
        assert params[0].grad.tolist() == [float(rank)] * 3


def twice(params: list[Any]) -> None:
    params[1]._maskgrad_gradient = mg.masked(torch.ones(3))  # as on PyTorch/XLA


def out_of_range(params: list[Any]) -> None:
    params[1].grad = coo(-1)


def prepared(rank: int, change: Callable[[Any], Any] = lambda module: None, **options: Any) -> None:
    """`prepare` of a module, of which that of rank 1 has been changed."""
    module = made(Tables)
    if rank:
        change(module)
    before = state(module)
    try:
        d.prepare(module, **options)
    finally:
        assert torch.equal(state(module), before)


def larger(module: Any) -> None:
    module.table = nn.Embedding(WORDS + 1, 4, sparse=True)


def optimizer(
    kind: Any = mg.optim.Adam, steps: int = 0, first: int = 0, lr: Any = 0.1, **options: Any
) -> None:
    """A comparison of optimizers of a layer after some steps."""
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    one = kind(list(model.parameters())[first:], lr=lr)
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        one.step()
    d.check_optimizer(one, **options)


def parameters(rank: int, change: Callable[[Any], Any] = lambda model: None) -> None:
    """A comparison of modules, of which that of rank 1 has been changed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    if rank:
        with torch.no_grad():
            change(model)
    d.check_parameters(list(model.parameters()))
    d.check_parameters(model)


def by_one_bit(model: Any) -> None:
    model[0].bias[1] = torch.nextafter(model[0].bias[1], torch.tensor(9.0))


def by_the_sign_of_zero(model: Any) -> None:
    model[1].running_mean.neg_()


#: The error on all ranks, and its words.
REFUSED: dict[str, tuple[type[Exception], str, Callable[[int], Any]]] = {
    # all_reduce
    "an index on one rank": (IndexError, "index 9", lambda rank: d.all_reduce(coo(9 * rank))),
    "a list": (TypeError, "found list", lambda rank: d.all_reduce([1.0] if rank else coo(0))),
    "shapes": (ValueError, r"\(3,\).*\(4,\)", lambda rank: d.all_reduce(torch.ones(3 + rank))),
    "dtypes": (ValueError, "float32.*float64", lambda rank: d.all_reduce(torch.ones(3).to([F32, F64][rank]))),
    "an unknown sum": (ValueError, "'max'", lambda rank: d.all_reduce(coo(0), ["sum", "max"][rank])),
    "sums": (ValueError, "op='sum'.*op='avg'", lambda rank: d.all_reduce(coo(0), ["sum", "avg"][rank])),
    "an average of integers": (TypeError, "convert x to a float", lambda rank: d.all_reduce(ONE, "avg")),
    # all_reduce_gradients
    "two gradients of one parameter": (
        ValueError,
        "only one is allowed",
        lambda rank: gradients(rank, twice),
    ),
    "an index of a gradient": (IndexError, "index -1", lambda rank: gradients(rank, out_of_range)),
    "fewer parameters": (
        ValueError,
        "nothing more|of 2 tensors",
        lambda rank: gradients(rank, lambda p: p[:1]),
    ),
    "a set of parameters": (TypeError, "the same order", lambda rank: gradients(rank, set)),
    "not a parameter": (TypeError, "found float", lambda rank: gradients(rank, lambda p: [*p, 3.0])),
    # sum, mean, count
    "a mean of a list": (TypeError, "found list", lambda rank: d.mean([1.0] if rank else torch.ones(1))),
    "a sum of a sparse tensor": (TypeError, "mg.from_sparse", lambda rank: d.sum(coo(0))),
    "a mean of integers": (TypeError, "torch.int64", lambda rank: d.mean(ONE)),
    "a dimension": (IndexError, "out of range", lambda rank: d.mean(torch.ones(2), 5 * rank)),
    "means of shapes": (ValueError, r"\(3,\)", lambda rank: d.mean(torch.ones(2, 3 + rank), 0)),
    "functions": (ValueError, "sum of", lambda rank: [d.sum, d.mean][rank](torch.ones(2))),
    # prepare
    "a larger table": (
        ValueError,
        r"'table.weight'.*\(9, 4\).*\(10, 4\)",
        lambda rank: prepared(rank, larger),
    ),
    "an option": (ValueError, "static_graph=False.*=True", lambda rank: prepared(0, static_graph=rank > 0)),
    "a misspelt part": (
        ValueError,
        "'taple'.*; give names",
        lambda rank: prepared(0, sparse=["taple"][rank:]),
    ),
    "half a name": (ValueError, "'tab'.*; give names", lambda rank: prepared(rank, sparse="tab")),
    "not a module": (TypeError, "found int", lambda rank: d.prepare(3 if rank else made(Tables))),
    # check_optimizer, check_parameters
    "a rate": (ValueError, "lr=0.1 in group 0", lambda rank: optimizer(lr=0.1 + rank)),
    "a rate in a tensor": (ValueError, "float32 0.5", lambda rank: optimizer(lr=torch.tensor(0.5 + rank))),
    "a class": (ValueError, "class Adagrad", lambda rank: optimizer([mg.optim.Adam, mg.optim.Adagrad][rank])),
    "parameters of an optimizer": (ValueError, r"\(3, 2\)", lambda rank: optimizer(first=rank)),
    "a state": (ValueError, "state 'exp_avg'", lambda rank: optimizer(steps=1 - rank)),
    "a step": (ValueError, "torch.float32 2.0", lambda rank: optimizer(steps=1 + rank)),
    "not an optimizer": (TypeError, "found Linear", lambda rank: d.check_optimizer(nn.Linear(1, 1))),
    "a bit": (ValueError, "parameter 1 ", lambda rank: parameters(rank, by_one_bit)),
    "a buffer": (ValueError, r"'1.running_mean'", lambda rank: parameters(rank, by_the_sign_of_zero)),
    "numbers instead of parameters": (TypeError, "found float", lambda rank: d.check_parameters([3.0])),
}


def _refused(rank: int, world_size: int, name: str) -> tuple[str, str]:
    try:
        REFUSED[name][2](rank)
    except Exception as error:
        found = type(error).__name__, str(error)
    assert d.all_reduce(torch.ones(1)).item() == 2.0
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_all_ranks_refuse(name: str) -> None:
    wanted, words, _ = REFUSED[name]
    answers = run_on_ranks(_refused, 2, name)
    for kind, text in answers:
        assert kind == wanted.__name__, text
        assert re.search(words, text, re.DOTALL), text
    first, second = (text for _, text in answers)
    assert first == second or re.search(
        "the ranks disagree|raised an error, so every rank does", first + second
    )


def _the_same(rank: int, world_size: int) -> None:
    optimizer(steps=1)
    optimizer(steps=1 - rank, state=False)
    parameters(rank)


def test_what_is_the_same_on_all_ranks_passes_the_checks() -> None:
    run_on_ranks(_the_same, 2)
