"""Tables whose rows are up to date when they are read: every way to read one, against the dense optimizer."""

from __future__ import annotations

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
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    "AdamW": {"lr": 0.05, "weight_decay": 0.1},
    "Adam": {"lr": 0.05, "weight_decay": 0.1},  # has no closed form
}
Made = tuple[LookupTable, Any, Any, Any]


def pair(kind: str, name: str, **arguments: Any) -> Made:
    """Ours with a lazy optimizer, torch's with a dense one, on equal float64 tables."""
    weight = torch.linspace(-1, 1, ROWS * WIDTH, dtype=torch.float64).view(ROWS, WIDTH)
    ours = getattr(mg.nn, kind).from_pretrained(weight.clone(), freeze=False, **arguments)
    theirs = getattr(nn, kind).from_pretrained(weight.clone(), freeze=False, **arguments)
    lazy = getattr(mg.optim, name)(ours.parameters(), unspecified="zero", **OPTIMIZERS[name])
    return ours, theirs, lazy, getattr(torch.optim, name)(theirs.parameters(), **OPTIMIZERS[name])


def train(made: Made, steps: int, *more: Tensor | None) -> None:
    """Each look-up sees what a dense optimizer would have made of the rows."""
    ours, theirs, lazy, eager = made
    for step in range(steps):
        results = []
        indices = torch.tensor([[step % 3, step % 5], [step % 3, 6 if step % 11 == 10 else 1]])
        for table, optimizer in ((ours, lazy), (theirs, eager)):
            optimizer.zero_grad()
            looked_up = table(indices if len(more) != 1 else indices.view(-1), *more)
            results.append(looked_up.detach())
            (looked_up * torch.sin(looked_up + step)).sum().backward()
            optimizer.step()
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


OFFSETS = torch.tensor([0, 1, 1, 4])
WEIGHTS = torch.tensor([[0.5, -0.25], [0.125, 0.5]], dtype=torch.float64)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    ("kind", "arguments", "more"),
    [
        ("Embedding", {}, ()),
        ("Embedding", {"padding_idx": -1}, ()),
        ("Embedding", {"max_norm": 0.9}, ()),
        ("Embedding", {"scale_grad_by_freq": True}, ()),
        ("Embedding", {"sparse": False}, ()),
        ("EmbeddingBag", {"mode": "max", "max_norm": 0.9}, ()),
        ("EmbeddingBag", {"mode": "sum", "padding_idx": 1}, (None, WEIGHTS)),
        ("EmbeddingBag", {"include_last_offset": True}, (OFFSETS,)),
    ],
)
def test_a_table_shows_the_dense_values(kind: str, name: str, arguments: dict[str, Any], more: Any) -> None:
    ours, theirs, *_ = made = pair(kind, name, **arguments)
    train(made, 40, *more)
    ours.flush()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-10, atol=1e-12)


#: Copies, files and loaded values: tests/unit/masked_tensor/torch_patches.
READ: dict[str, Callable[[Any], Tensor]] = {
    "state_dict": lambda table: table.state_dict()["weight"],
    "float": lambda table: table.float().weight,
    "vmap": lambda table: torch.func.vmap(table)(torch.arange(ROWS)[None])[0],
    "without the optimizer": lambda table: table(torch.arange(ROWS)),
}


@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_rows_that_wait_are_up_to_date_in_every_way_to_read_them(read: Callable[[Any], Tensor]) -> None:
    ours, theirs, lazy, eager = made = pair("Embedding", "AdamW")
    train(made, 9)
    assert len(lazy_rows_of(ours.weight) or ()) > 0
    del lazy, eager, made
    gc.collect()
    torch.testing.assert_close(read(ours).detach().double(), theirs.weight.detach(), rtol=1e-5, atol=1e-6)


def test_only_the_rows_looked_up_are_written() -> None:
    ours, *_, lazy, _ = pair("Embedding", "AdamW")
    for rows in ([*range(ROWS)], [0]):
        lazy.zero_grad()
        ours(torch.tensor(rows)).sum().backward()
        lazy.step()
    before, version = ours.weight.detach().clone(), ours.weight._version
    ours(torch.tensor([3, 3], dtype=torch.int32))
    assert (ours.weight.detach() != before).any(1).nonzero().tolist() == [[3]]
    assert ours.weight._version == version


def test_the_operator_is_registered_as_it_should_be() -> None:
    torch.library.opcheck(torch.ops.maskgrad.ready_rows.default, (torch.tensor([0, 1]), -1))
    table = mg.nn.Embedding(3, 2)
    program = torch.export.export(table, (torch.tensor([1, 2]),))  # runs without maskgrad
    assert "maskgrad" not in program.graph_module.code
    assert torch.equal(program.module()(torch.tensor([0, 2])), table.weight[[0, 2]])


def test_sparse_gradients_are_refused_where_there_are_no_sparse_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookup, "has_sparse_tensors", lambda device: False)
    for kind in ("Embedding", "EmbeddingBag"):
        made = getattr(mg.nn, kind)
        with pytest.raises(RuntimeError, match=rf"XLA .*write mg\.nn\.{kind}\(\.\.\., sparse=False\)$"):
            made(ROWS, WIDTH)(torch.tensor([[0, 2]]))
        assert made(ROWS, WIDTH, sparse=False)(torch.tensor([[0, 2]])).requires_grad
