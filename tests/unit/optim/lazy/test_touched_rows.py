"""Which rows a step moves, as the gradient and the optimizer say."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.optim.lazy.averages import touched_rows
from tests.unit.optim.kinds import coo


def test_which_rows_move() -> None:
    p = nn.Parameter(torch.ones(4, 3))

    def rows(optimizer: torch.optim.Optimizer, grad: Tensor | None) -> Any:
        p.grad = grad
        found = touched_rows(optimizer, optimizer.param_groups[0], p)
        return None if found is None else found.tolist()

    some, entries = coo([[2, 0, 2]], torch.ones(3, 3), (4, 3)), coo([[3, 1], [0, 2]], [1.0, 1.0], (4, 3))
    for optimizer in (
        mg.optim.SGD([p], lr=0.1, momentum=0.9),
        torch.optim.SparseAdam([p]),
        torch.optim.Adagrad([p]),
        torch.optim.SGD([p], lr=0.1),
    ):
        assert rows(optimizer, some) == [0, 2]
        assert rows(optimizer, entries) == [1, 3]
        assert rows(optimizer, torch.ones(4, 3)) is None
        assert rows(optimizer, None) == []
    for optimizer in (
        mg.optim.SGD([p], lr=0.1, unspecified="zero"),
        torch.optim.SGD([p], lr=0.1, momentum=0.9),
        torch.optim.SGD([p], lr=0.1, weight_decay=0.1),
        torch.optim.AdamW([p]),
    ):
        assert rows(optimizer, some) is None
    whole = torch.sparse_coo_tensor(torch.empty(0, 1).long(), torch.ones(1, 4, 3), (4, 3))
    assert rows(mg.optim.SGD([p], lr=0.1), whole) is None
