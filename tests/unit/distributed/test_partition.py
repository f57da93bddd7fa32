"""Which parameters DistributedDataParallel reduces, which are exchanged, and which are left alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import maskgrad as mg
from maskgrad.distributed.partition import partition


class Own(nn.Module):
    """A class from elsewhere, with layers of torch.nn inside."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(3, 2))
        self.layer = nn.Linear(2, 2)
        self.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)


def test_parameters_are_dense_exchanged_or_local() -> None:
    net: Any = nn.Module()
    net.own = Own()
    net.table = nn.Embedding(4, 2, sparse=True)
    net.dense_table = nn.Embedding(4, 2)
    net.bag = mg.nn.EmbeddingBag(4, 2)
    net.local = nn.Linear(2, 2, bias=False)
    net.local._ddp_params_and_buffers_to_ignore = ["weight"]
    net.tied = nn.Linear(2, 4, bias=False)
    net.tied.weight = net.table.weight
    net.head = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    layer = {"own.layer.weight", "own.layer.bias"}
    head = {f"head.{n}.{name}" for n in (0, 1) for name in ("weight", "bias")}
    always = {"own.rows", "table.weight", "bag.weight"}
    found = partition(net)
    assert set(found.dense) == {"dense_table.weight", *layer, *head}
    assert set(found.exchanged) == always
    assert set(found.local) == {"local.weight"}
    assert set(partition(net, "head").exchanged) == always | head
