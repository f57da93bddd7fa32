"""What an examination finds in the process, and puts back."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.doctor.state import objects_with_state


def test_tensors_that_autograd_forbids_are_no_leaves() -> None:
    """All objects of the process are looked at, and some raise when they are asked."""
    base = torch.ones(2, requires_grad=True) * 1
    first, second = base.unbind()
    base.mul_(2)
    with pytest.raises(RuntimeError, match="Unbind"):
        _ = second.is_leaf
    leaves, _, _ = objects_with_state()
    assert not any(leaf is first or leaf is second for leaf in leaves)


@pytest.mark.parametrize("given", [False, True])
def test_modules_that_the_collector_passes_over_are_put_back(given: bool) -> None:
    """``gc.freeze``, which trainers call, hides objects from a search of the process."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 1))
    before = torch.ones(3, 4)
    model[0].weight.grad = before
    gc.freeze()  # not undone: it would be for all tests that follow

    def step(x: Tensor) -> Tensor:
        model.eval()
        return model(x).square().mean()

    report = mg.doctor.examine(step, torch.randn(5, 4), model=model if given else None, experiments=["order"])
    assert report.ok
    assert model[0].weight.grad is before
    assert (before == 1).all()
    assert all(module.training is given for module in model.modules())  # eval() comes before the first call
