"""Which parameters DistributedDataParallel reduces, which are exchanged, and which are left alone."""

from __future__ import annotations

from typing import Any

import pytest
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


def model() -> nn.Module:
    net = nn.Module()
    net.own = Own()
    net.table = nn.Embedding(4, 2, sparse=True)
    net.dense_table = nn.Embedding(4, 2)
    net.bag = mg.nn.EmbeddingBag(4, 2)
    net.local = nn.Linear(2, 2, bias=False)
    net.local._ddp_params_and_buffers_to_ignore = ["weight"]
    net.tied = nn.Linear(2, 4, bias=False)
    net.tied.weight = net.table.weight
    net.head = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    return net


DENSE = {
    "own.layer.weight", "own.layer.bias", "dense_table.weight",
    "head.0.weight", "head.0.bias", "head.1.weight", "head.1.bias",
}  # fmt: skip
EXCHANGED = {"own.rows", "table.weight", "bag.weight"}


def test_parameters_are_dense_exchanged_or_local() -> None:
    found = partition(model())
    assert set(found.dense) == DENSE
    assert set(found.exchanged) == EXCHANGED
    assert set(found.local) == {"local.weight"}
    assert "parameter 'table.weight' of shape (4, 2) and torch.float32" in found.described()


def test_named_parameters_are_exchanged() -> None:
    net: Any = model()
    found = partition(net, ["head.0", "own.layer.bias"])
    assert set(found.exchanged) == EXCHANGED | {"head.0.weight", "head.0.bias", "own.layer.bias"}
    assert set(partition(net, "head").exchanged) == EXCHANGED | {
        name for name in DENSE if name.startswith("head")
    }


@pytest.mark.parametrize("named", [["hea"], ["own.layer.bia"], [nn.Linear(1, 1)], [3]])
def test_names_are_checked(named: list[Any]) -> None:
    with pytest.raises(ValueError, match="no such parameter or submodule; give names"):
        partition(model(), named)
