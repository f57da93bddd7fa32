"""Rows in slots: what every optimizer makes of a COO gradient, with no size that depends on numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.gradients import gradient as gradients
from maskgrad.gradients.gradient import read
from maskgrad.optim.engine import apply_update
from maskgrad.optim.rule import Update
from tests.unit.optim.optimizers import CASES, NAN, WITH_ROW_STATE

HEIGHT, LOOKUPS, STEPS = 9, 8, 5


@pytest.fixture(autouse=True)
def sizes_are_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on XLA. Where a size may depend on numbers, slots become rows: see suite/steps.py."""
    monkeypatch.setattr(gradients, "supports_dynamic_shapes", lambda device: False)


def gradient(step: int, row: tuple[int, ...], dtype: torch.dtype, kind: str) -> Any:
    """Rows that are named up to three times; nothing at all in step 2, and everything unused."""
    torch.manual_seed(step)
    used = torch.arange(LOOKUPS) < (0, LOOKUPS, 0, 3, 6)[step]
    rows = torch.where(used, torch.randint(HEIGHT // 2, HEIGHT, (LOOKUPS,)), HEIGHT)
    values = torch.where(used.view(-1, *[1] * len(row)), torch.randn(LOOKUPS, *row).to(dtype), NAN)
    if kind == "coo":
        return torch.sparse_coo_tensor(rows[used][None], values[used], (HEIGHT, *row), check_invariants=True)
    return mg.PaddedRows(rows, values, (HEIGHT, *row))


def trained(
    optimizer: Any, kind: str, options: dict[str, Any], row: tuple[int, ...] = (3,), dtype: Any = torch.float64,
    mask: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:  # fmt: skip
    torch.manual_seed(99)
    param = torch.nn.Parameter(torch.randn(HEIGHT, *row).to(dtype))
    if mask is not None:
        mg.train_only(param, mask)
    made = optimizer([param], **options)
    for step in range(STEPS):
        mg.attach_gradient(param, gradient(step, row, dtype, kind))
        made.step()
    made.flush()
    return param.detach(), made.state[param]


def assert_same(
    found: tuple[Tensor, dict[str, Any]], expected: tuple[Tensor, dict[str, Any]], **close: float
) -> None:
    torch.testing.assert_close(found[0], expected[0], **close)
    assert found[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        torch.testing.assert_close(found[1][name], value, msg=lambda text, n=name: f"{n}: {text}", **close)


@pytest.mark.parametrize("extra", [{}, {"unspecified": "zero"}], ids=["skip", "zero"])
@pytest.mark.parametrize("case", CASES)
def test_every_optimizer(case: str, extra: dict[str, Any]) -> None:
    both = [trained(CASES[case].ours, kind, CASES[case].options | extra) for kind in ("padded", "coo")]
    assert_same(*both, rtol=1e-9, atol=1e-11)
    assert not both[0][0].isnan().any()


@pytest.mark.parametrize("name", WITH_ROW_STATE)
def test_one_state_per_row(name: str) -> None:
    both = [trained(getattr(mg.optim, name), kind, {"state": "row"}) for kind in ("padded", "coo")]
    assert_same(*both, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "LAMB"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex128], ids=str)
@pytest.mark.parametrize("row", [(), (2, 3)], ids=str)
def test_other_dtypes_and_shapes(name: str, dtype: torch.dtype, row: tuple[int, ...]) -> None:
    both = [trained(getattr(mg.optim, name), kind, {"lr": 0.1}, row, dtype) for kind in ("padded", "coo")]
    assert_same(*both)


@pytest.mark.parametrize("extra", [{}, {"unspecified": "zero"}, {"state": "row"}], ids=str)
@pytest.mark.parametrize("name", ["Adagrad", "LAMB"])
def test_entries_that_are_not_trained(name: str, extra: dict[str, Any]) -> None:
    masks = (
        torch.arange(HEIGHT * 3).view(HEIGHT, 3) % 4 > 0,
        (torch.arange(HEIGHT) % 3 > 0)[:, None].expand(-1, 3),
    )
    for mask in masks:
        both = [trained(getattr(mg.optim, name), kind, extra, mask=mask) for kind in ("padded", "coo")]
        assert_same(*both, rtol=1e-9, atol=1e-11)


def test_a_table_that_is_not_contiguous_and_one_that_is_empty() -> None:
    results = []
    for kind in ("padded", "coo"):
        param = torch.nn.Parameter(torch.ones(3, HEIGHT).t())
        mg.attach_gradient(param, gradient(1, (3,), torch.float32, kind))
        mg.optim.Adagrad([param], lr=0.1).step()
        results.append(param.detach())
    assert torch.equal(*results)
    for shape, lookups in (((0, 2), 3), ((3, 0), 3), ((3, 2), 0)):
        param = torch.nn.Parameter(torch.ones(shape))
        rows = torch.full((lookups,), shape[0])
        mg.attach_gradient(param, mg.PaddedRows(rows, torch.full((lookups, shape[1]), NAN), shape))
        mg.optim.Adagrad([param], lr=0.1).step()
        assert param.detach().eq(1).all()


def test_the_functional_update() -> None:
    results = []
    for kind in ("padded", "coo"):
        param, total = torch.ones(HEIGHT, 3), torch.full((HEIGHT, 3), 0.5)
        mg.optim.functional.adagrad_(param, gradient(1, (3,), torch.float32, kind), total, lr=0.1)
        results.append((param, total))
    torch.testing.assert_close(*results)


def test_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    param = torch.ones(4, 1)
    given = mg.PaddedRows(torch.tensor([2, 4, 0, 2]), torch.tensor([[1.0], [NAN], [2.0], [3.0]]), (4, 1))
    monkeypatch.undo()
    rows = read(given, "p")
    assert rows.lists_rows
    assert rows.rows is not None
    assert rows.rows.tolist() == [2, 0, 2]
    monkeypatch.setattr(gradients, "supports_dynamic_shapes", lambda device: False)
    slots = read(given, "p")
    assert slots.padded
    assert slots.rows is not None
    assert (slots.rows.tolist(), slots.values.tolist()) == ([0, 2, 4, 4], [[2.0], [4.0], [0.0], [0.0]])

    def rule(param: Tensor, grad: Tensor) -> None:
        assert not grad.isnan().any()
        param.add_(grad)

    apply_update(Update(rule), param, slots, [])
    assert param.tolist() == [[3.0], [1.0], [5.0], [1.0]]
