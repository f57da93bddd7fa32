"""Tensor parallelism on masked batches: refused, and what the message says to write is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks

parallel = pytest.importorskip("torch.distributed.tensor.parallel")

LENGTHS = torch.tensor([3, 1])
MASK = (torch.arange(3) < LENGTHS[:, None]).unsqueeze(-1)


def _layers() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).double()


def _values() -> Tensor:
    values = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(3)).double()
    return values.masked_fill(~MASK, float("nan"))


def _run(rank: int, world_size: int) -> tuple[list[str], Tensor, list[Tensor]]:
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world_size,))
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    module: Any = parallel.parallelize_module(_layers(), mesh, plan)
    refusals = []
    for layout in (torch.strided, torch.jagged):
        x = mg.from_lengths(_values(), LENGTHS, layout=layout)
        with pytest.raises(mg.errors.UnsupportedOperationError) as refusal:
            module(x)
        refusals.append(str(refusal.value))
        y = mg.masked(module(x.filled(0.0)), MASK)
    y.square().sum().backward()
    return refusals, y.filled(0.0).detach(), [p.grad.full_tensor() for p in module.parameters()]


def test_the_way_that_is_named_gives_what_one_process_does() -> None:
    module, x = _layers(), mg.from_lengths(_values(), LENGTHS)
    y = module(x)
    y.square().sum().backward()
    for refusals, found, gradients in run_on_ranks(_run, 2):
        for words in refusals:
            assert words.startswith("DTensor does not support MaskedTensor")
            assert "parallelize_module" in words
            assert "y = mg.masked(module(x.filled(0.)), mask)" in words
        torch.testing.assert_close(found, y.filled(0.0))
        torch.testing.assert_close(gradients, [p.grad for p in module.parameters()])
