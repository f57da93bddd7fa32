"""What is peculiar to states of some optimizers; see suite/states.py and suite/refusals.py for all of them."""

from __future__ import annotations

import copy

import pytest
import torch

from maskgrad import optim
from tests.unit.optim.suite.refusals import stepped


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
