"""Tensor parallelism on masked batches: refused, and what the message says to write is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks

parallel = pytest.importorskip("torch.distributed.tensor.parallel")

MASK = torch.arange(3) < torch.tensor([3, 1])[:, None]


def _layers() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).double()


def _batch() -> mg.MaskedTensor:
    values = torch.arange(24.0, dtype=torch.float64).sin().view(2, 3, 4)
    return mg.masked(values.where(MASK[..., None], torch.nan), MASK[..., None])


def _parallel(rank: int, world_size: int) -> tuple[str, Tensor, list[Tensor]]:
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world_size,))
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    module: Any = parallel.parallelize_module(_layers(), mesh, plan)
    x = _batch()
    for given in (x, x.to_sparse()):
        with pytest.raises(mg.errors.UnsupportedOperationError) as refusal:
            module(given)
    y = mg.masked(module(x.filled(0.0)), x.mask)
    y.square().sum().backward()
    return str(refusal.value), y.filled(0.0).detach(), [p.grad.full_tensor() for p in module.parameters()]


def test_the_way_that_is_named_gives_what_one_process_does() -> None:
    module = _layers()
    y = module(_batch())
    y.square().sum().backward()
    for words, found, gradients in run_on_ranks(_parallel, 2):
        assert words.startswith("DTensor does not support MaskedTensor")
        assert "y = mg.masked(module(x.filled(0.)), mask)" in words
        torch.testing.assert_close(found, y.filled(0.0))
        torch.testing.assert_close(gradients, [p.grad for p in module.parameters()])
