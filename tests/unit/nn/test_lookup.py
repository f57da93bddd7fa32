"""Tables whose rows are up to date when they are read: every way to read one, against the dense optimizer."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.nn import lookup
from maskgrad.nn.lookup import LookupTable
from maskgrad.optim.lazy.rows import lazy_rows_of

ROWS, WIDTH = 7, 3
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "adamw": ("AdamW", {"lr": 0.05, "weight_decay": 0.1}),
    "adam, coupled decay": ("Adam", {"lr": 0.05, "weight_decay": 0.1}),
}
every_optimizer = pytest.mark.parametrize(("name", "options"), OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
Made = tuple[LookupTable, Any, Any, Any]


def pair(kind: str, name: str, options: dict[str, Any], **arguments: Any) -> Made:
    """Ours with a lazy optimizer, torch's with a dense one, on equal float64 tables."""
    weight = torch.linspace(-1, 1, ROWS * WIDTH, dtype=torch.float64).view(ROWS, WIDTH)
    ours = getattr(mg.nn, kind).from_pretrained(weight.clone(), freeze=False, **arguments)
    theirs = getattr(nn, kind).from_pretrained(weight.clone(), freeze=False, **arguments)
    lazy = getattr(mg.optim, name)(ours.parameters(), unspecified="zero", **options)
    eager = getattr(torch.optim, name)(theirs.parameters(), **options)
    return ours, theirs, lazy, eager


def train(made: Made, steps: int, arguments: Callable[[int], tuple[Tensor, ...]]) -> None:
    """Each look-up sees what a dense optimizer would have made of the rows."""
    ours, theirs, lazy, eager = made
    for step in range(steps):
        results = []
        for table, optimizer in ((ours, lazy), (theirs, eager)):
            optimizer.zero_grad()
            looked_up = table(*arguments(step))
            results.append(looked_up.detach())
            (looked_up * torch.sin(looked_up + step)).sum().backward()
            optimizer.step()
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def some(step: int) -> tuple[Tensor]:
    return (torch.tensor([[step % 3, step % 5], [step % 3, 6 if step % 11 == 10 else 1]]),)


@every_optimizer
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"padding_idx": 1},
        {"padding_idx": -1},
        {"max_norm": 0.9},
        {"scale_grad_by_freq": True},
        {"sparse": False},
    ],
    ids=str,
)
def test_an_embedding_shows_the_dense_values(
    name: str, options: dict[str, Any], arguments: dict[str, Any]
) -> None:
    made = pair("Embedding", name, options, **arguments)
    train(made, 40, some)
    ours, theirs, *_ = made
    ours.flush()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-10, atol=1e-12)


@every_optimizer
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"mode": "sum", "padding_idx": 1},
        {"mode": "max"},
        {"max_norm": 0.9},
        {"mode": "sum", "scale_grad_by_freq": True},
        {"mode": "sum", "weighted": True},
        {"include_last_offset": True, "offsets": True},
    ],
    ids=str,
)
def test_an_embedding_bag_shows_the_dense_values(
    name: str, options: dict[str, Any], arguments: dict[str, Any]
) -> None:
    arguments = dict(arguments)
    weighted, offsets = arguments.pop("weighted", False), arguments.pop("offsets", False)

    def call(step: int) -> tuple[Any, ...]:
        (indices,) = some(step)
        if offsets:
            return indices.view(-1), torch.tensor([0, 1, 1, 4])
        weights = torch.tensor([[0.5, -0.25], [0.125, 0.5]], dtype=torch.float64) if weighted else None
        return indices, None, weights

    train(pair("EmbeddingBag", name, options, **arguments), 40, call)


def test_two_look_ups_in_one_graph() -> None:
    """Bringing rows up to date is no change that the first look-up's backward pass could mind."""
    ours, theirs, lazy, eager = pair("EmbeddingBag", *OPTIMIZERS["sgd"], mode="sum")
    for step in range(12):
        for table, optimizer in ((ours, lazy), (theirs, eager)):
            optimizer.zero_grad()
            weights = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
            first = table(torch.tensor([[0, 1]]), None, weights)
            second = table(torch.tensor([[2 + step % 4, 1]]), None, weights)
            (first * second).sum().backward()
            optimizer.step()
    ours.flush()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-10, atol=1e-12)


#: Copies and files, also of models: tests/unit/masked_tensor/torch_patches/test_conversions.py.
READ: dict[str, Callable[[Any], Tensor]] = {
    "state_dict": lambda table: table.state_dict()["weight"],
    "float": lambda table: table.float().weight,
    "vmap": lambda table: torch.func.vmap(table)(torch.arange(ROWS)[None])[0],
    "without the optimizer": lambda table: table(torch.arange(ROWS)),
}


@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_rows_that_wait_are_up_to_date_in_every_way_to_read_them(read: Callable[[Any], Tensor]) -> None:
    ours, theirs, lazy, eager = made = pair("Embedding", *OPTIMIZERS["adamw"])
    train(made, 9, some)
    assert len(lazy_rows_of(ours.weight) or ()) > 0
    del lazy, eager, made
    gc.collect()
    torch.testing.assert_close(read(ours).detach().double(), theirs.weight.detach(), rtol=1e-5, atol=1e-6)


def test_loaded_values_and_copies_have_no_steps_to_make_up_for() -> None:
    ours, theirs, lazy, eager = made = pair("Embedding", *OPTIMIZERS["sgd"])
    train(made, 9, some)
    other = copy.deepcopy(ours)
    before = other.weight.detach().clone()
    values = {"weight": torch.ones(ROWS, WIDTH, dtype=torch.float64)}
    ours.load_state_dict(values)
    theirs.load_state_dict(values)
    train((ours, theirs, lazy, eager), 9, some)  # states were up to date when the values changed
    ours.flush()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-10, atol=1e-12)
    other(torch.tensor([1]))
    other.flush()
    assert torch.equal(other.weight.detach(), before)


def test_only_the_rows_looked_up_are_written() -> None:
    ours, *_, lazy, _ = pair("Embedding", *OPTIMIZERS["adamw"])
    ours(torch.arange(ROWS)).sum().backward()
    lazy.step()
    lazy.zero_grad()
    ours(torch.tensor([0])).sum().backward()
    lazy.step()
    before, version = ours.weight.detach().clone(), ours.weight._version
    ours(torch.tensor([3, 3], dtype=torch.int32))
    changed = (ours.weight.detach() != before).any(1)
    assert changed.tolist() == [False, False, False, True, False, False, False]
    assert ours.weight._version == version


def test_one_operator_in_a_compiled_graph() -> None:
    ours, theirs, lazy, eager = pair("Embedding", *OPTIMIZERS["adamw"])
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for step in range(8):
        results = []
        for table, optimizer in ((compiled, lazy), (theirs, eager)):
            optimizer.zero_grad()
            looked_up = table(*some(step))
            results.append(looked_up.detach())
            looked_up.square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_the_operator_is_registered_as_it_should_be() -> None:
    torch.library.opcheck(torch.ops.maskgrad.ready_rows.default, (torch.tensor([0, 1]), -1))
    table = mg.nn.Embedding(3, 2)
    program = torch.export.export(table, (torch.tensor([1, 2]),))  # runs without maskgrad
    assert "maskgrad" not in program.graph_module.code
    assert torch.equal(program.module()(torch.tensor([0, 2])), table.weight[[0, 2]])


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_sparse_gradients_are_refused_where_there_are_no_sparse_tensors(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "has_sparse_tensors", lambda device: False)
    ids = torch.tensor([[0, 2]])
    with pytest.raises(RuntimeError, match=rf"XLA .*write mg\.nn\.{kind}\(\.\.\., sparse=False\)$"):
        getattr(mg.nn, kind)(ROWS, WIDTH)(ids)
    table = getattr(mg.nn, kind)(ROWS, WIDTH, sparse=False)
    table(ids).sum().backward()
    assert table.weight.grad.layout is torch.strided
