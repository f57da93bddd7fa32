"""Small graphs, of which some nodes are absent."""

from __future__ import annotations

import torch
from torch import Tensor

import maskgrad as mg

INDEX = torch.tensor([0, 0, 2, 2, 2, 3, 0])
EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
#: Which of seven nodes are there, and the graph of each.
ROWS = torch.tensor([True, True, False, True, True, False, True])
GRAPHS = torch.tensor([0, 0, 0, 1, 1, 1, 1])


def absent_nodes() -> tuple[mg.MaskedTensor, Tensor]:
    """Seven nodes, of which five are there, and their features."""
    values = torch.randn(7, 5)
    return mg.masked(torch.where(ROWS[:, None], values, torch.nan), ROWS[:, None]), values
