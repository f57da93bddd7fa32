"""What is peculiar to the states of some optimizers; suite/states.py and suite/refusals.py have all of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from maskgrad import attach_gradient, optim
from maskgrad.optim import SGD
from tests.unit.optim.kinds import FULL, coo
from tests.unit.optim.suite.refusals import stepped

DAMPENED: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}


@pytest.mark.parametrize("kind", ["rows", "coo", "masked"])
def test_every_entry_of_sgd_starts_its_buffer_with_its_first_gradient(kind: str) -> None:
    """One row at a time, each must follow a dense torch.optim.SGD that sees only its own steps."""
    start, gradients = torch.randn(3, 2), torch.randn(6, 2)
    p = nn.Parameter(start.clone())
    alone = [nn.Parameter(row.clone()) for row in start]
    optimizer = SGD([p], **DAMPENED, weight_decay=0.1)
    references = [torch.optim.SGD([q], **DAMPENED, weight_decay=0.1) for q in alone]
    for row, gradient in zip([0, 1, 0, 2, 1, 0], gradients, strict=True):
        attach_gradient(p, FULL[kind](torch.zeros(3, 2).index_copy(0, torch.tensor([row]), gradient[None])))
        optimizer.step()
        alone[row].grad = gradient.clone()
        references[row].step()
    torch.testing.assert_close(p.detach(), torch.stack([q.detach() for q in alone]), rtol=1e-6, atol=1e-7)


def test_the_marker_of_started_buffers_is_saved_and_believes_the_buffer_after_torch() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer, again = SGD([p], **DAMPENED), SGD([p], **DAMPENED)
    p.grad = coo([[1]], [1.0], (3,))
    optimizer.step()
    again.load_state_dict(optimizer.state_dict())
    again.step()
    assert again.state[p]["momentum_started"].tolist() == [False, True, False]
    torch.testing.assert_close(again.state[p]["momentum_buffer"], torch.tensor([0.0, 1.4, 0.0]))

    theirs = torch.optim.SGD([p], **DAMPENED)
    theirs.load_state_dict(again.state_dict())
    p.grad = torch.tensor([1.0, 1.0, 0.0])
    theirs.step()
    again.load_state_dict(theirs.state_dict())
    p.grad = coo([[0, 2]], [1.0, 1.0], (3,))
    again.step()
    torch.testing.assert_close(again.state[p]["momentum_buffer"], torch.tensor([0.95, 1.76, 1.0]))
    p.grad = torch.ones(3)
    again.step()
    assert again.state[p].keys() == {"momentum_buffer"}  # all have started


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_a_sparse_buffer_of_torch_becomes_a_dense_one(dampening: float) -> None:
    p = nn.Parameter(torch.ones(3, 1))
    theirs, ours = (kind([p], **{**DAMPENED, "dampening": dampening}) for kind in (torch.optim.SGD, SGD))
    p.grad = coo([[1]], [[1.0]], (3, 1))
    theirs.step()
    ours.load_state_dict(theirs.state_dict())
    p.grad = coo([[1, 2]], [[1.0], [1.0]], (3, 1))
    ours.step()
    expected = [[0.0], [0.9 + 1 - dampening], [1.0]]
    torch.testing.assert_close(ours.state[p]["momentum_buffer"], torch.tensor(expected))


def test_the_state_of_adagrad_is_there_before_the_first_step_as_in_torch() -> None:
    p, q = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.complex64))
    optimizer, theirs = (
        kind([p], initial_accumulator_value=0.5) for kind in (optim.Adagrad, torch.optim.Adagrad)
    )
    for one in (optimizer, theirs):  # each group starts with its own value
        one.add_param_group({"params": [q], "initial_accumulator_value": 3.0})
    for param in (p, q):
        ours, wanted = optimizer.state[param], theirs.state[param]
        assert {name: (t.dtype, t.tolist()) for name, t in ours.items()} == {
            name: (t.dtype, t.tolist()) for name, t in wanted.items()
        }


def test_a_number_for_the_whole_parameter_must_be_one() -> None:
    optimizer = stepped(optim.NAdam)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["mu_product"] = torch.ones(2)
    with pytest.raises(ValueError, match=r"state 'mu_product' of parameter 0 of group 0 must be a scalar"):
        optimizer.load_state_dict(saved)


def test_adamw_stays_decoupled_whatever_is_loaded() -> None:
    optimizer = stepped(optim.AdamW)
    optimizer.load_state_dict(stepped(torch.optim.Adam, weight_decay=0.5).state_dict())
    assert optimizer.param_groups[0]["decoupled_weight_decay"] is True
    assert optimizer.param_groups[0]["weight_decay"] == 0.5
