"""``bias_correction="row"``: a row is stepped by the number of steps that it has had itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg

NAMES = ["Adam", "AdamW", "NAdam", "RAdam", "Adamax"]
every_name = pytest.mark.parametrize("name", NAMES)
ROW: dict[str, Any] = {"bias_correction": "row"}


def rows(index: list[int], values: Tensor, height: int) -> Tensor:
    return torch.sparse_coo_tensor([index], values, (height, *values.shape[1:]), check_invariants=True)


def test_the_first_step_of_a_row_after_a_hundred_of_others() -> None:
    """Adam's step is lr * sign(g) at first; with m = 0.1 g and v = 0.001 g^2 uncorrected, 0.1 / sqrt(0.001) times."""
    for how, expected in (("steps", -0.1 * 0.1 / (0.001 / (1 - 0.999**101)) ** 0.5), ("row", -0.1)):
        p = nn.Parameter(torch.zeros(2, 1))
        optimizer = mg.optim.Adam([p], lr=0.1, bias_correction=how)  # type: ignore[arg-type]
        for _ in range(100):
            p.grad = rows([0], torch.ones(1, 1), 2)
            optimizer.step()
        p.grad = rows([1], torch.ones(1, 1), 2)
        optimizer.step()
        assert p[1].item() == pytest.approx(expected, rel=1e-4)
    assert optimizer.state[p]["step"].tolist() == [[100.0], [1.0]]


@every_name
@pytest.mark.parametrize("row", [(), (3,), (2, 2)])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (kind, dtype)
        for kind in ("rows", "masked", "dense")
        for dtype in (torch.float32, torch.float64, torch.complex64)
    ],
)
def test_each_row_is_as_if_it_were_alone(
    name: str, dtype: torch.dtype, row: tuple[int, ...], kind: str
) -> None:
    """A parameter for each row, each stepped by PyTorch when that row has a gradient."""
    start = torch.randn(5, *row).to(dtype)
    p = nn.Parameter(start.clone())
    alone = [nn.Parameter(t.clone()) for t in start]
    options = {"lr": 0.1, "weight_decay": 0.1, "betas": (0.8, 0.9)}
    optimizer = getattr(mg.optim, name)([p], **options, **ROW)
    theirs = [getattr(torch.optim, name)([q], **options) for q in alone]
    for step in range(14):
        index = [step % 5, (step * step) % 5] if kind != "dense" else [*range(5)]
        values = torch.randn(len(index), *row).to(dtype)
        grad = torch.zeros(5, *row, dtype=dtype).index_add(0, torch.tensor(index), values)
        mask = torch.zeros(5, dtype=torch.bool).index_fill(0, torch.tensor(index), True)
        if kind == "rows":
            p.grad = torch.sparse_coo_tensor([index], values, p.shape, check_invariants=True)
        elif kind == "dense":
            p.grad = grad
        else:
            whole = mask.view(-1, *(1 for _ in row)).expand(p.shape)
            mg.attach_gradient(p, mg.masked(torch.where(whole, grad, float("nan")), whole))
        optimizer.step()
        for i in set(index):
            alone[i].grad = grad[i]
            theirs[i].step()
        torch.testing.assert_close(p.detach(), torch.stack([q.detach() for q in alone]), rtol=1e-4, atol=1e-5)
    counts = optimizer.state[p]["step"].real.flatten().tolist()
    assert counts == [float(t.state[q]["step"]) for t, q in zip(theirs, alone, strict=True)]


@every_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_counts_are_saved_and_loaded(name: str, dtype: torch.dtype) -> None:
    def train(optimizer: Any, p: Tensor, steps: range) -> None:
        for step in steps:
            p.grad = rows([step % 3, 3], torch.full((2, 2), 0.5 + step, dtype=dtype), 4)
            optimizer.step()

    p = nn.Parameter(torch.ones(4, 2, dtype=dtype))
    optimizer = getattr(mg.optim, name)([p], lr=0.1, **ROW)
    train(optimizer, p, range(300))
    q = nn.Parameter(p.detach().clone())
    again = getattr(mg.optim, name)([q], lr=0.1, **ROW)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert again.state[q]["step"].flatten().tolist() == [100, 100, 100, 300]
    if dtype is torch.float32:
        train(optimizer, p, range(4))
        train(again, q, range(4))
        assert torch.equal(p, q)


def test_invalid_options_and_states_are_refused() -> None:
    p = nn.Parameter(torch.ones(4, 2))
    with pytest.raises(
        ValueError, match=r"bias_correction='rows' is not available; use bias_correction='steps' \("
    ):
        mg.optim.Adam([p], bias_correction="rows")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"not available with unspecified='zero'.*use bias_correction='steps'"
    ):
        mg.optim.Adam([p], bias_correction="row", unspecified="zero")
    by_row, by_steps = mg.optim.Adam([p], bias_correction="row"), mg.optim.Adam([p])
    p.grad = torch.ones(4, 2)
    for optimizer in (by_row, by_steps):
        optimizer.step()
    with pytest.raises(ValueError, match="build the optimizer with bias_correction='row' to load it"):
        by_steps.load_state_dict(by_row.state_dict())
    theirs = torch.optim.Adam([p])
    theirs.step()
    with pytest.raises(ValueError, match=r"state 'step'.*shape \(\).*needs a state of shape \(4, 1\)"):
        by_row.load_state_dict(theirs.state_dict())
    assert by_row.state[p]["step"].tolist() == [[1.0]] * 4
