"""The network: a token for each number that is there, a row of a table for each place, two delays.

Shapes: B flights, F numbers, P places, W width of a token, R width of a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import maskgrad as mg

__all__ = ["Delays"]

WIDTH, ROW, HIDDEN = 32, 8, 64


class Delays(nn.Module):
    """Predicts departure and arrival delay (B, 2), in units of 40 minutes.

    A number x becomes the token ``relu(x * weight + bias)``, with weight and bias of its own; the tokens are added up.
    With a MaskedTensor a missing number has no token and adds nothing.
    """

    def __init__(self, num_numbers: int, rows: Iterable[int]) -> None:
        super().__init__()
        self.weight_FW = nn.Parameter(torch.randn(num_numbers, WIDTH))
        self.bias_FW = nn.Parameter(torch.randn(num_numbers, WIDTH))
        tables = [nn.Embedding(n, ROW, sparse=True) for n in rows]
        for table in tables:
            nn.init.normal_(table.weight, std=0.1)
        self.tables = nn.ModuleList(tables)
        width = WIDTH + ROW * len(self.tables)
        self.head = nn.Sequential(
            nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2)
        )

    def forward(self, numbers_BF: Any, codes_BP: mg.MaskedTensor) -> Tensor:
        """``numbers_BF`` is a MaskedTensor, or a Tensor in which something stands for what is missing."""
        tokens_BFW = (numbers_BF.unsqueeze(-1) * self.weight_FW + self.bias_FW).relu()
        # not their mean, in which the tokens that remain would weigh more when others are missing
        summary_BW = tokens_BFW.sum(dim=1) / tokens_BFW.shape[1]
        # no row for an unknown plane, and no gradient
        rows = [table(codes_BP[:, i]).filled(0.0) for i, table in enumerate(self.tables)]
        if isinstance(summary_BW, mg.MaskedTensor):
            summary_BW = summary_BW.filled(0.0)  # of a flight of which nothing is known
        delays: Tensor = self.head(torch.cat([summary_BW, *rows], dim=1))
        return delays
