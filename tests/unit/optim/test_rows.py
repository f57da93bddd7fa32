"""Steps on some rows, prepared: right whatever has changed since, refused as a whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad import kernels
from maskgrad.kernels.updates import cpu as cpu_updates

KINDS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    "Adagrad": {"lr_decay": 0.1},
    "Adam": {"weight_decay": 0.1},
    "AdamW": {"amsgrad": True, "maximize": True},
    "RMSprop": {"momentum": 0.5, "centered": True},
}


def gradient(shape: tuple[int, ...], step: int, dtype: torch.dtype) -> Tensor:
    """Rows in any order, some of them twice; now and then ascending, and sometimes many."""
    generator = torch.Generator().manual_seed(step)
    n = (3, 70, 5, 1)[step % 4]
    index = torch.randint(shape[0], (n,), generator=generator)
    index = index.sort().values if step % 3 == 0 else index
    values = torch.randn((n, *shape[1:]), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(index[None], values, shape, check_invariants=True)


@pytest.mark.parametrize("shape", [(50, 4), (50,), (50, 2, 3)])
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("added", [1, 1 << 20], ids=["merged", "added"])
def test_rows_step_as_under_a_mask_whatever_has_changed_since(
    kind: str, plain: bool, shape: tuple[int, ...], added: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of states moves, entries are frozen for a while, and dense gradients come in between."""
    monkeypatch.setattr("maskgrad.optim.rows.ADDED", added)
    for dtype in (torch.float32, torch.float64):
        start = torch.randn(shape).to(dtype)
        p, q = (nn.Parameter(start.clone()) for _ in range(2))
        a, b = (getattr(mg.optim, kind)([t], lr=0.1, **({} if plain else KINDS[kind])) for t in (p, q))
        for step in range(12):
            p.grad = gradient(shape, step, dtype)
            rows = p.grad.coalesce()
            mask = torch.zeros(shape, dtype=torch.bool).index_fill(0, rows.indices()[0], True)
            mg.attach_gradient(q, mg.masked(rows.to_dense(), mask))
            version = p._version
            a.step()
            b.step()
            assert p._version > version
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
            for name, state in a.state[p].items():
                torch.testing.assert_close(state, b.state[q][name], rtol=1e-5, atol=1e-6)
                if step == 2:
                    state.share_memory_()
                if step == 5:
                    state.data = state.data.clone()
            for t, optimizer in ((p, a), (q, b)):
                t.grad = torch.ones(shape, dtype=dtype)
                optimizer.step()
                if step in (7, 9):
                    half = torch.arange(50).view(50, *[1] * (len(shape) - 1)) % 2 == 0
                    mg.train_only(t, half if step == 7 else None)


def test_a_refused_step_changes_no_table() -> None:
    """Also where the index is looked at by PyTorch's addition, which plain SGD is."""
    for kind in ("SGD", "Adagrad"):
        for index in (4, -1):
            params = [nn.Parameter(torch.ones(4, 2)) for _ in range(3)]
            optimizer = getattr(mg.optim, kind)([{"params": params[:2]}, {"params": params[2:]}], lr=0.1)
            for p, row in zip(params, (0, 1, index), strict=True):
                p.grad = torch.sparse_coo_tensor([[row]], torch.ones(1, 2), (4, 2), check_invariants=False)
            with pytest.raises(IndexError, match=rf"gradient of parameter 0 of group 1.* index {index} of"):
                optimizer.step()
            assert all(bool((p == 1).all()) for p in params)
            assert not any(state["step"] for state in optimizer.state.values())


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
