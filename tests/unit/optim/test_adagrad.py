"""What is peculiar to Adagrad: its state is there from the start."""

from __future__ import annotations

import torch
from torch import nn

from maskgrad.optim import Adagrad


def test_the_state_is_there_before_the_first_step_as_in_torch() -> None:
    p, q = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.complex64))
    ours = Adagrad([p, q], initial_accumulator_value=0.5).state
    theirs = torch.optim.Adagrad([p, q], initial_accumulator_value=0.5).state
    for param in (p, q):
        assert ours[param].keys() == theirs[param].keys()
        for key, value in theirs[param].items():
            assert torch.equal(ours[param][key], value)
            assert ours[param][key].dtype == value.dtype


def test_a_group_added_later_starts_with_its_own_value() -> None:
    p, q = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = Adagrad([p])
    optimizer.add_param_group({"params": [q], "initial_accumulator_value": 3.0})
    q.grad = torch.ones(1)
    optimizer.step()
    assert optimizer.state[q]["sum"].item() == 4.0
