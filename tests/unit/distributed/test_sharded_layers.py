"""Layers sharded with fully_shard beside tables that are exchanged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks

fsdp = pytest.importorskip("torch.distributed.fsdp")
pytestmark = pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="this PyTorch has no fully_shard")


class Tower(nn.Module):
    """A table and some layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.table = nn.Embedding(9, 4, sparse=True)
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, words: Tensor) -> Tensor:
        return self.layers(self.table(words).mean(1)).squeeze(1)


def words(step: int, rank: int) -> Tensor:
    return torch.randint(0, 9, (4, 3), generator=torch.Generator().manual_seed(10 * step + rank))


def _training(rank: int, world_size: int, whole: bool) -> list[Tensor]:
    module: Any = Tower()
    if whole:  # the root too, without the table
        fsdp.fully_shard(module, ignored_params={module.table.weight})
    else:
        fsdp.fully_shard(module.layers)
    model = mg.distributed.prepare(module)
    dense = torch.optim.SGD(module.layers.parameters(), lr=0.1)
    tables = mg.optim.Adagrad([module.table.weight], lr=0.1)
    found = []
    for step in range(3):
        dense.zero_grad()
        tables.zero_grad()
        model(words(step, rank)).square().mean().backward()
        mg.distributed.all_reduce_gradients(
            module
        )  # once more changes nothing, and leaves sharded layers alone
        dense.step()
        tables.step()
        full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in module.parameters()]
        found.append(torch.cat([p.detach().flatten() for p in full]).clone())
    assert module.table.weight.grad.is_sparse
    return found


@pytest.mark.parametrize("whole", [False, True])
def test_as_one_process_on_the_joint_batch(whole: bool) -> None:
    module = Tower()
    dense = torch.optim.SGD(module.layers.parameters(), lr=0.1)
    tables = mg.optim.Adagrad([module.table.weight], lr=0.1)
    expected = []
    for step in range(3):
        dense.zero_grad()
        tables.zero_grad()
        torch.cat([module(words(step, rank)) for rank in (0, 1)]).square().mean().backward()
        dense.step()
        tables.step()
        expected.append(torch.cat([p.detach().flatten() for p in module.parameters()]).clone())
    for found in run_on_ranks(_training, 2, whole):
        for one, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-5)
