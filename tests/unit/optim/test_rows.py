"""Steps on some rows, prepared: what the engine does, whatever has changed since, and refusals as it words them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad import kernels
from maskgrad.kernels.updates import cpu as cpu_updates
from maskgrad.optim import rows as prepared

KINDS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    "Adagrad": {"lr_decay": 0.1},
    "Adam": {"weight_decay": 0.1},
    "AdamW": {"amsgrad": True, "maximize": True},
    "RMSprop": {"momentum": 0.5, "centered": True},
}


def gradient(shape: tuple[int, ...], step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows in any order, some of them twice; now and then ascending, and sometimes many."""
    generator = torch.Generator().manual_seed(step)
    n = (3, 70, 5, 1)[step % 4]
    index = torch.randint(shape[0], (n,), generator=generator)
    index = index.sort().values if step % 3 == 0 else index
    values = torch.randn((n, *shape[1:]), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(index[None], values, shape, check_invariants=True)


def pair(
    kind: str, shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype = torch.float32
) -> Any:
    start = torch.randn(shape).to(dtype)
    params = [nn.Parameter(start.clone()) for _ in range(2)]
    return params, [getattr(mg.optim, kind)([p], lr=0.1, **options) for p in params]


@contextmanager
def recorded() -> Iterator[list[Any]]:
    """The steps that are not left to the engine; None for each that is."""
    steps, table = [], prepared.RowLoop.table

    def kept(loop: Any, *args: Any) -> Any:
        steps.append(table(loop, *args))
        return steps[-1]

    with mock.patch.object(prepared.RowLoop, "table", kept):
        yield steps


def both(params: Any, optimizers: Any, step: int) -> None:
    """One prepared, the other by the engine."""
    for p in params:
        p.grad = gradient(tuple(p.shape), step, p.dtype)
    optimizers[0].step()
    with mock.patch.object(prepared.RowLoop, "table", return_value=None):
        optimizers[1].step()
    if type(optimizers[0]).__name__ == "SGD" and not optimizers[0].defaults["momentum"]:
        torch.testing.assert_close(params[0], params[1])  # PyTorch adds row by row, and does not merge
    else:
        assert torch.equal(params[0], params[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(50, 4), (50,), (50, 2, 3)])
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_the_engine_does(
    kind: str, plain: bool, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    params, optimizers = pair(kind, shape, {} if plain else KINDS[kind], dtype)
    with recorded() as steps:
        for step in range(9):
            both(params, optimizers, step)
    assert any(steps)
    for name, state in optimizers[0].state[params[0]].items():
        assert torch.equal(state, optimizers[1].state[params[1]][name])


def test_frozen_entries_and_other_gradients_in_turns() -> None:
    params, optimizers = pair("Adam", (50, 4), {})
    for step in range(8):
        both(params, optimizers, step)
        for p, optimizer in zip(params, optimizers, strict=True):
            p.grad = torch.ones_like(p)  # dense
            optimizer.step()
        if step == 3:
            for p in params:
                mg.train_only(p, torch.arange(50)[:, None] % 2 == 0)
        if step == 5:
            for p in params:
                mg.train_only(p, None)
    assert torch.equal(params[0], params[1])


def test_plain_sgd_is_an_addition_unless_rows_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskgrad.optim.rows.ADDED", 1 << 17)
    for width, ways in ((4, {True}), (20_000, {True, False})):
        params, optimizers = pair("SGD", (50, width), {"maximize": True})
        found = set()
        for step in range(4):
            with recorded() as steps:
                both(params, optimizers, step)
            found.add(steps[0].func.__name__ == "add_")
        assert found == ways
    p = nn.Parameter(torch.zeros(5, 2))
    p.grad = torch.sparse_coo_tensor([[5]], torch.ones(1, 2), (5, 2), check_invariants=False)
    with pytest.raises(IndexError, match="index 5 of entry 0"):
        mg.optim.SGD([p], lr=0.1).step()
    assert not p.any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 1), (5, 3), (5,), (5, 1, 2), (5, 2, 1)])
def test_gradients_that_are_expanded(kind: str, shape: tuple[int, ...]) -> None:
    """As ``embedding(index).sum().backward()`` makes them: of strides 0, which torch.optim.SGD reads as no gradient."""
    p, q = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.ones(shape))
    a, b = (getattr(mg.optim, kind)([param], lr=0.5) for param in (p, q))
    for n in (1, 2):
        index = torch.arange(n)[None]
        values = torch.ones(()).expand(n, *shape[1:])
        for _ in range(2):
            p.grad = torch.sparse_coo_tensor(index, values, shape, check_invariants=True)
            q.grad = torch.sparse_coo_tensor(index, values.clone(), shape, check_invariants=True)
            a.step()
            b.step()
            torch.testing.assert_close(p, q)
        assert (p.view(5, -1) != 1).any(1).tolist() == [i < n for i in range(5)]
    if len(shape) == 2:
        table = nn.Embedding(*shape, sparse=True)
        table.weight.data.fill_(1.0)
        optimizer = getattr(mg.optim, kind)(table.parameters(), lr=0.5)
        table(torch.tensor([2])).sum().backward()
        optimizer.step()
        assert (table.weight != 1).any(1).tolist() == [False, False, True, False, False]


def test_versions_count_and_wrong_indices_leave_everything() -> None:
    params, optimizers = pair("Adam", (50, 4), {})
    for step in range(2):
        both(params, optimizers, step)
    p, optimizer = params[0], optimizers[0]
    version = p._version
    both(params, optimizers, 2)
    assert p._version > version
    other = nn.Parameter(torch.randn(50, 4))
    optimizer.add_param_group({"params": [other]})
    p.grad = gradient((50, 4), 1)
    other.grad = torch.sparse_coo_tensor([[50]], torch.ones(1, 4), (50, 4), check_invariants=False)
    before = p.detach().clone(), float(optimizer.state[p]["step"])
    with pytest.raises(IndexError, match=r"gradient of parameter 0 of group 1.* index 50"):
        optimizer.step()
    assert torch.equal(p, before[0])
    assert optimizer.state[p]["step"] == before[1]
    p.grad = torch.sparse_coo_tensor([[-1]], torch.ones(1, 4), (50, 4), check_invariants=False)
    other.grad = None
    with pytest.raises(IndexError, match=r"gradient of parameter 0 of group 0.* index -1"):
        optimizer.step()
    assert torch.equal(p, before[0])


@pytest.mark.parametrize("kind", ["Adagrad", "Adam", "RMSprop"])
def test_states_whose_memory_moves(kind: str) -> None:
    """``share_memory_()`` and ``data =`` leave the tensor and take its memory away."""
    params, optimizers = pair(kind, (50, 4), {})
    for step in range(8):
        both(params, optimizers, step)
        for optimizer, p in zip(optimizers, params, strict=True):
            for t in optimizer.state[p].values():
                if step == 2:
                    t.share_memory_()
                if step == 5:
                    t.data = t.data.clone()
    for name, t in optimizers[0].state[params[0]].items():
        assert torch.equal(t, optimizers[1].state[params[1]][name])


def test_a_parameter_of_a_class_of_its_own_goes_through_the_engine() -> None:
    """What such a class makes of memory and of operations is not known here."""

    class Own(torch.nn.Parameter):
        pass

    taken = []
    for kind in (torch.nn.Parameter, Own):
        param = kind(torch.ones(4, 2))
        optimizer = mg.optim.Adagrad([param], lr=0.1)
        grad = torch.sparse_coo_tensor([[1]], torch.ones(1, 2), (4, 2), check_invariants=True)
        param.grad = grad
        loop = optimizer._prepared_group(0, optimizer.param_groups[0]).rows
        taken.append(loop.table(param, optimizer.state) is not None)
        optimizer.step()
        assert param.detach()[1].tolist() == pytest.approx([0.9, 0.9])
    assert taken == [True, False]


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


@pytest.mark.parametrize("options", [{}, {"state": "row"}], ids=str)
def test_a_step_that_fails_half_way_is_counted_for_those_that_had_it(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Not for tables whose kernel never ran: of the usual kind, and of one that the engine updates."""
    dense = torch.nn.Parameter(torch.ones(4, 2))
    tables = [torch.nn.Parameter(torch.ones(4, 2)) for _ in range(6)]
    optimizer = mg.optim.Adagrad([dense, *tables], lr=0.1, **options)
    dense.grad = torch.ones(4, 2)
    for table in tables:
        table.grad = torch.sparse_coo_tensor([[1]], torch.ones(1, 2), (4, 2))

    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(kernels, "update_rows_", fails)
    monkeypatch.setattr(cpu_updates, "run", fails)
    with pytest.raises(MemoryError):
        optimizer.step()
    assert [float(optimizer.state[p]["step"]) for p in (dense, *tables)] == [1, *[0] * 6]
    assert not (dense == 1).any()
    assert all(bool((table == 1).all()) for table in tables)
    monkeypatch.undo()
    optimizer.step()
    assert [float(optimizer.state[p]["step"]) for p in (dense, *tables)] == [2, *[1] * 6]
