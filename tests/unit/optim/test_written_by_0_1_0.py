"""State dictionaries that maskgrad 0.1.0 wrote, kept as a file: they load, and training goes on as it did then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.optim.optimizers import CASES

FILE = Path(__file__).parent / "written_by_0_1_0" / "states.pt"
ALL = [f"{case}, {unspecified}" for case in CASES for unspecified in ("skip", "zero")]


@pytest.fixture(scope="module")
def kept() -> Any:
    return torch.load(FILE, weights_only=True)


def gradients(step: int) -> tuple[Tensor, Tensor]:
    """Those with which the file was made: rows of a table, some of them twice, and a dense one."""
    generator = torch.Generator().manual_seed(step)
    rows = torch.randint(0, 6, (4,), generator=generator)
    values = torch.randn(4, 3, generator=generator)
    table = torch.sparse_coo_tensor(rows[None], values, (6, 3), check_invariants=False)
    return table, torch.randn(4, generator=generator)


@pytest.mark.parametrize("name", ALL)
def test_training_goes_on(name: str, kept: dict[str, Any]) -> None:
    assert kept.keys() >= {*ALL}  # and an optimizer that is gone
    case, _, unspecified = name.rpartition(", ")
    params = [nn.Parameter(t.clone()) for t in kept[name]["before"]]
    optimizer: Any = CASES[case].mine(params, unspecified=unspecified)
    optimizer.load_state_dict(kept[name]["state"])
    for step in range(3, 6):
        params[0].grad, params[1].grad = gradients(step)
        optimizer.step()
    optimizer.flush()
    for param, then in zip(params, kept[name]["after"], strict=True):
        # dense gradients go to PyTorch's fused step now, which rounds differently
        torch.testing.assert_close(param.detach(), then, rtol=1e-5, atol=1e-6)
    assert optimizer.state_dict()["param_groups"][0].keys() >= kept[name]["state"]["param_groups"][0].keys()
