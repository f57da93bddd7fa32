"""Small tables of one step are updated together, with the same results as one after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad import kernels
from maskgrad.kernels.updates import cpu as cpu_updates

OPTIMIZERS = [
    (mg.optim.SGD, {"momentum": 0.9}),
    (mg.optim.Adagrad, {}),
    (mg.optim.Adagrad, {"state": "row"}),
    (mg.optim.AdamW, {"amsgrad": True, "maximize": True}),
    (mg.optim.RMSprop, {"momentum": 0.9}),
    (mg.optim.Lion, {}),
]


def gradients() -> list[torch.Tensor]:
    """Of nine tables: five alike, one larger, one of another width, a half, and one with a dense gradient."""
    found = []
    single = torch.float32
    alike = [(rows, 4, single) for rows in (20, 21, 22, 23, 24, 3000)]
    for rows, width, dtype in [*alike, (5, 3, single), (8, 4, torch.bfloat16)]:
        at = torch.randint(0, rows, (1, 7))
        found.append(torch.sparse_coo_tensor(at, torch.randn(7, width, dtype=dtype), (rows, width)))
    return [*found, torch.randn(6, 4)]


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
def test_together_as_alone(optimizer: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [gradients() for _ in range(3)]
    together = [torch.nn.Parameter(torch.randn(g.shape, dtype=g.dtype)) for g in steps[0]]
    alone = [torch.nn.Parameter(p.detach().clone()) for p in together]
    one, many = optimizer(together, lr=0.1, **options), [optimizer([p], lr=0.1, **options) for p in alone]
    calls = []
    original = kernels.update_tables_

    def counted(name: str, tables: Any, *args: Any, **numbers: Any) -> None:
        calls.append(len(tables[0]))
        original(name, tables, *args, **numbers)

    monkeypatch.setattr(kernels, "update_tables_", counted)
    for grads in steps:
        calls.clear()
        for p, q, g in zip(together, alone, grads, strict=True):
            p.grad, q.grad = g.clone(), g.clone()
        one.step()
        assert (max(calls, default=0) == 6) == (optimizer is not mg.optim.Lion)
        for o in many:
            o.step()
    for p, q, o in zip(together, alone, many, strict=True):
        assert torch.equal(p, q)
        for name, value in one.state[p].items():
            assert torch.equal(value, o.state[q][name])


def test_a_refused_step_changes_no_table() -> None:
    params = [torch.nn.Parameter(torch.ones(4, 2)) for _ in range(3)]
    optimizer = mg.optim.Adagrad(params, lr=0.1)
    for p, row in zip(params, (0, 1, 9), strict=True):
        p.grad = torch.sparse_coo_tensor([[min(row, 3)]], torch.ones(1, 2), (4, 2))
    params[2].grad = torch.sparse_coo_tensor([[9]], torch.ones(1, 2), (4, 2), check_invariants=False)
    with pytest.raises(IndexError, match="9"):
        optimizer.step()
    assert all(bool((p == 1).all()) for p in params)
    assert not any(optimizer.state[p]["step"] for p in params)


@pytest.mark.parametrize("number", [1, 6])
def test_a_step_that_fails_half_way_is_counted_for_those_that_had_it(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Not for tables that were put off: their kernel never ran. One goes to the loop by itself, six together."""
    dense = torch.nn.Parameter(torch.ones(4, 2))
    tables = [torch.nn.Parameter(torch.ones(4, 2)) for _ in range(number)]
    optimizer = mg.optim.Adagrad([dense, *tables], lr=0.1)
    dense.grad = torch.ones(4, 2)
    for table in tables:
        table.grad = torch.sparse_coo_tensor([[1]], torch.ones(1, 2), (4, 2))

    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(kernels, "update_tables_", fails)
    monkeypatch.setattr(cpu_updates, "run", fails)
    with pytest.raises(MemoryError):
        optimizer.step()
    assert [float(optimizer.state[p]["step"]) for p in (dense, *tables)] == [1, *[0] * number]
    assert not (dense == 1).any()
    assert all(bool((table == 1).all()) for table in tables)
    monkeypatch.undo()
    optimizer.step()
    assert [float(optimizer.state[p]["step"]) for p in (dense, *tables)] == [2, *[1] * number]
