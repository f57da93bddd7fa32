"""Options that change in place."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from maskgrad import optim
from tests.unit.optim.kinds import coo


@pytest.mark.parametrize("betas", [(torch.tensor(0.9), 0.99), [0.9, 0.99]], ids=["tensor", "list"])
@pytest.mark.parametrize("rows", [True, False])
def test_betas_may_change_in_place(betas: Any, rows: bool) -> None:
    betas = copy.deepcopy(betas)
    p, q = (nn.Parameter(torch.ones(4, 2)) for _ in range(2))
    ours, theirs = optim.Adam([p], lr=0.1, betas=betas), optim.Adam([q], lr=0.1, betas=(0.9, 0.99))
    for step in range(6):
        for t in (p, q):
            given = coo([[1, 3]], torch.full((2, 2), step + 1.0), (4, 2))
            t.grad = given if rows else given.to_dense()
        ours.step()
        theirs.step()
        if step == 3:  # long after everything was prepared
            if isinstance(betas, list):
                ours.param_groups[0]["betas"][0] = 0.5
            else:
                betas[0].fill_(0.5)
            theirs.param_groups[0]["betas"] = (0.5, 0.99)
    torch.testing.assert_close(p, q)
