"""A norm over ranks is the norm that one process has."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from maskgrad.distributed import ShardedEmbedding, clip_grad_norm_
from tests.ranks import run_on_ranks

ROWS = 9


def clipped(rank: int, world_size: int) -> None:
    whole = torch.randn(ROWS, 2, dtype=torch.float64)
    for order in (1.0, 2.0, 3.0, float("inf")):
        for limit in (0.5, 1e6):
            tables = [
                ShardedEmbedding.from_pretrained(whole, freeze=False, gradients="sum", placement=placement)  # type: ignore[arg-type]
                for placement in ("block", world_size - 1)
            ]
            ones = [mg.nn.Embedding.from_pretrained(whole.clone(), freeze=False) for _ in tables]
            dense, its_twin = (torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2))
            index = torch.tensor([[0, 8, 8], [3, 0, 1], [2, 2, 2], [5, 4, 4]])[:world_size]
            weights = torch.arange(3.0).add(1)[:, None]
            for table, one in zip(tables, ones, strict=True):
                (table(index[rank]) * weights).sum().backward()
                (one(index) * weights).sum().backward()
            dense.grad, its_twin.grad = (torch.full((3,), 2.0, dtype=torch.float64) for _ in range(2))
            norm = clip_grad_norm_([dense, *(t.weight for t in tables)], limit, order)
            expected = mg.clip_grad_norm_([its_twin, *(o.weight for o in ones)], limit, order)
            torch.testing.assert_close(norm, expected)
            torch.testing.assert_close(dense.grad, its_twin.grad)
            for table, one in zip(tables, ones, strict=True):
                assert table.weight.grad is not None
                assert one.weight.grad is not None
                own = table.placement.own_rows()
                torch.testing.assert_close(table.weight.grad.to_dense(), one.weight.grad.to_dense()[own])


def refused(rank: int, world_size: int) -> None:
    table = ShardedEmbedding(4, 1)
    table(torch.tensor([0, 3])).sum().backward()
    other = torch.nn.Parameter(torch.ones(1))
    other.grad = torch.ones(1)
    if rank == 1:
        other._maskgrad_gradient = mg.masked(torch.ones(1))  # type: ignore[attr-defined]  # as on PyTorch/XLA
    with pytest.raises(ValueError, match="clip_grad_norm_: rank 1 raised" if rank == 0 else "gradient"):
        clip_grad_norm_([other, table.weight], 1.0)
    if rank == 1:
        del other._maskgrad_gradient  # type: ignore[attr-defined]
    if rank == 0:
        table.weight.grad = table.weight.grad * float("inf")  # type: ignore[operator]
    with pytest.raises(RuntimeError, match="is non-finite, so it cannot be clipped"):
        clip_grad_norm_([other, table.weight], 1.0, error_if_nonfinite=True)
    assert other.grad.item() == 1.0


def test_the_norm_is_that_of_one_process() -> None:
    clipped(0, 1)
    run_on_ranks(clipped, 2)


def test_all_ranks_refuse_together() -> None:
    run_on_ranks(refused, 2)
    table = ShardedEmbedding(4, 1)
    with pytest.raises(ValueError, match="max_norm must be at least 0, found -1"):
        clip_grad_norm_(table.parameters(), -1)
    with pytest.raises(ValueError, match="norm_type must be above 0 for sharded parameters, found 0"):
        clip_grad_norm_(table.parameters(), 1.0, 0)
