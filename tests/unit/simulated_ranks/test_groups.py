"""Collectives of simulated ranks give what those of PyTorch give."""

from __future__ import annotations

import types

import pytest
import torch
import torch.distributed as dist
from torch import nn

import maskgrad as mg


def close(found, wanted) -> None:
    torch.testing.assert_close(found, torch.as_tensor(wanted, dtype=found.dtype).expand_as(found))


def reduced(rank: int, size: int) -> None:
    total = sum(range(1, size + 1))
    for name, wanted in {"SUM": total, "AVG": total / size, "MAX": size, "MIN": 1}.items():
        x = torch.full((2,), rank + 1.0)
        assert dist.all_reduce(x, getattr(dist.ReduceOp, name), async_op=True).wait()
        close(x, wanted)
    x = torch.full((2,), rank + 1.0)
    dist.reduce(x, size - 1)
    close(x, total if rank == size - 1 else rank + 1)
    x = torch.full((3,), float(rank))
    dist.broadcast(x, size - 1)
    close(x, size - 1)


def gathered(rank: int, size: int) -> None:
    own, everyone = torch.full((2,), float(rank)), torch.arange(float(size))
    parts = [torch.empty(2) for _ in range(size)]
    dist.all_gather(parts, own)
    close(torch.stack(parts), everyone[:, None])
    joined = torch.empty(2 * size)
    dist.all_gather_into_tensor(joined, own)
    close(joined.view(size, 2), everyone[:, None])
    parts = [torch.empty(2) for _ in range(size)] if rank == 0 else None
    dist.gather(own, parts, 0)
    if parts:
        close(torch.stack(parts), everyone[:, None])
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]
    held = ["from the first"] if rank == 0 else [None]
    dist.broadcast_object_list(held, 0)
    assert held == ["from the first"]


def scattered(rank: int, size: int) -> None:
    target = torch.empty(1)
    dist.scatter(target, [torch.full((1,), 10.0 + other) for other in range(size)] if rank == 0 else None, 0)
    close(target, 10 + rank)
    dist.reduce_scatter(target, [torch.full((1,), float(other)) for other in range(size)])
    close(target, rank * size)
    dist.reduce_scatter_tensor(target, torch.arange(float(size)))
    close(target, rank * size)
    out = torch.empty(size)
    dist.all_to_all_single(out, 10.0 * rank + torch.arange(float(size)))
    close(out, 10 * torch.arange(float(size)) + rank)


@pytest.mark.filterwarnings("ignore:.*is deprecated. Please use:FutureWarning")  # names of PyTorch 2.12
@pytest.mark.parametrize("check", [reduced, gathered, scattered], ids=lambda check: check.__name__)
def test_collectives(check) -> None:
    model, ran = nn.Linear(4, 1), []

    def step(batch):
        check(dist.get_rank(), dist.get_world_size())
        ran.append(dist.get_world_size())
        return model(batch).square().mean()

    report = mg.doctor.examine(step, torch.randn(6, 4), ranks=3, experiments=["ranks"])
    assert report.ok, report
    assert ran.count(3) == 6  # on each rank, of both divisions


@pytest.mark.parametrize(
    "name", ["accelerate.accelerator", "lightning.fabric.fabric", "transformers.trainer"]
)
def test_packages_that_count_ranks_themselves_are_refused_by_name(name: str) -> None:
    model, launcher = (
        nn.Linear(4, 1),
        type("Launcher", (types.SimpleNamespace,), {"__module__": name})(size=1),
    )

    def step(batch):
        return model(batch).square().mean() * launcher.size

    report = mg.doctor.examine(step, torch.randn(8, 4), ranks=4, experiments=["ranks"])
    assert report.verdict == "incomplete"
    assert f"the step uses {name}.Launcher" in report.unexamined[0]
