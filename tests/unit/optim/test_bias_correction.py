"""``bias_correction="row"``: a row is stepped by the number of steps that it has had itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.unit.optim.kinds import FULL

NAMES = ["Adam", "AdamW", "NAdam", "RAdam", "Adamax"]
every_name = pytest.mark.parametrize("name", NAMES)
ROW: dict[str, Any] = {"lr": 0.1, "bias_correction": "row"}


def rows(index: list[int], values: Tensor, height: int) -> Tensor:
    return torch.sparse_coo_tensor([index], values, (height, *values.shape[1:]), check_invariants=True)


@every_name
@pytest.mark.parametrize("row", [(), (3,), (2, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_each_row_is_as_if_it_were_alone(name: str, dtype: torch.dtype, row: tuple[int, ...]) -> None:
    """A parameter for each row, each stepped by PyTorch when that row has a gradient; all kinds take turns."""
    start = torch.randn(5, *row).to(dtype)
    p, alone = nn.Parameter(start.clone()), [nn.Parameter(t.clone()) for t in start]
    options = {"lr": 0.1, "weight_decay": 0.1, "betas": (0.8, 0.9)}
    optimizer = getattr(mg.optim, name)([p], **{**ROW, **options})
    theirs = [getattr(torch.optim, name)([q], **options) for q in alone]
    for step in range(18):
        kind = ("rows", "rows twice", "masked", "dense")[step % 4]
        index = {step % 5, (step * step) % 5} if kind != "dense" else {*range(5)}
        grad = torch.zeros(5, *row, dtype=dtype)
        for i in index:
            alone[i].grad = grad[i] = torch.randn(row).to(dtype)
            theirs[i].step()
        mg.attach_gradient(p, FULL[kind](grad))
        optimizer.step()
        torch.testing.assert_close(p.detach(), torch.stack([q.detach() for q in alone]), rtol=1e-4, atol=1e-5)
    counts = optimizer.state[p]["step"].real.flatten().tolist()
    assert counts == [float(t.state[q]["step"]) for t, q in zip(theirs, alone, strict=True)]


@every_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_counts_are_saved_and_loaded(name: str, dtype: torch.dtype) -> None:
    p = nn.Parameter(torch.ones(4, 2, dtype=dtype))
    optimizer = getattr(mg.optim, name)([p], **ROW)
    for step in range(300):  # more than bfloat16 counts
        p.grad = rows([step % 3, 3], torch.full((2, 2), 0.5 + step, dtype=dtype), 4)
        optimizer.step()
    q = nn.Parameter(p.detach().clone())
    again = getattr(mg.optim, name)([q], **ROW)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert again.state[q]["step"].flatten().tolist() == [100, 100, 100, 300]
    if dtype is torch.float32:
        q.grad = p.grad
        for one in (optimizer, again):
            one.step()
        assert torch.equal(p, q)


def test_invalid_options_and_states_are_refused() -> None:
    p = nn.Parameter(torch.ones(4, 2))
    for options, words in (
        (
            {"bias_correction": "rows"},
            r"bias_correction='rows' is not available; use bias_correction='steps' \(",
        ),
        ({"unspecified": "zero"}, r"not available with unspecified='zero'.*use bias_correction='steps'"),
    ):
        with pytest.raises(ValueError, match=words):
            mg.optim.Adam([p], **{**ROW, **options})
    by_row, by_steps, theirs = mg.optim.Adam([p], **ROW), mg.optim.Adam([p]), torch.optim.Adam([p])
    p.grad = torch.ones(4, 2)
    for optimizer in (by_row, by_steps, theirs):
        optimizer.step()
    with pytest.raises(ValueError, match="build the optimizer with bias_correction='row' to load it"):
        by_steps.load_state_dict(by_row.state_dict())
    with pytest.raises(ValueError, match=r"state 'step'.*shape \(\).*needs a state of shape \(4, 1\)"):
        by_row.load_state_dict(theirs.state_dict())
    assert by_row.state[p]["step"].tolist() == [[1.0]] * 4
