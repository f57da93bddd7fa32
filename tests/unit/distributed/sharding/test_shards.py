"""What ranks agree on about gradients of which each sees a part."""

from __future__ import annotations

import torch

import maskgrad as mg
from maskgrad.distributed import ShardedEmbedding, is_sharded
from tests.ranks import run_on_ranks


def overflow_on_one_rank(rank: int, world_size: int) -> list[float]:
    table = ShardedEmbedding.from_pretrained(
        torch.zeros(4, 1, dtype=torch.float16), freeze=False, gradients="sum"
    )
    optimizer = mg.optim.SGD(table.parameters(), lr=1.0)
    scaler = mg.amp.GradScaler("cpu", init_scale=4.0)
    scales = []
    for gradient in (1e6, 2.0):  # more than a half can hold, in row 3 only, which lies on the last rank
        optimizer.zero_grad()
        found = table(torch.tensor([0, 3])).float() * torch.tensor([[1.0], [gradient]])
        scaler.scale(found.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert table.full_weight().view(-1).tolist() == [-1.0 * world_size, 0.0, 0.0, -2.0 * world_size]
    return scales


def test_a_step_is_skipped_on_all_ranks_or_on_none() -> None:
    assert overflow_on_one_rank(0, 1) == [2.0, 2.0]
    assert run_on_ranks(overflow_on_one_rank, 2) == [[2.0, 2.0], [2.0, 2.0]]


def test_shards_are_told_from_other_parameters() -> None:
    table = ShardedEmbedding(3, 1)
    assert is_sharded(table.weight)
    assert is_sharded(table.double().weight)
    assert not is_sharded(mg.nn.Embedding(3, 1).weight)
    table = ShardedEmbedding.from_pretrained(torch.ones(3, 1))
    assert is_sharded(table.weight)


def whole_model(rank: int, world_size: int) -> None:
    """Tables beside replicated layers under ``mg.distributed.prepare``: one step as in one process."""
    torch.manual_seed(3)
    whole = torch.randn(6, 2, dtype=torch.float64)
    head = torch.nn.Linear(2, 1, dtype=torch.float64)
    model = torch.nn.Sequential(ShardedEmbedding.from_pretrained(whole, freeze=False), head)
    one = torch.nn.Sequential(
        torch.nn.Embedding.from_pretrained(whole.clone(), freeze=False), torch.nn.Linear(2, 1).double()
    )
    one[1].load_state_dict(head.state_dict())
    trained = mg.distributed.prepare(model)
    index = torch.tensor([[0, 5, 3], [0, 2, 2]])
    trained(index[rank]).square().mean().backward()
    one(index).square().mean().backward()
    torch.testing.assert_close(head.weight.grad, one[1].weight.grad)
    table = model[0]
    assert isinstance(table, ShardedEmbedding)
    assert table.weight.grad is not None
    torch.testing.assert_close(table.weight.grad.to_dense(), one[0].weight.grad[table.placement.own_rows()])
    assert torch.equal(table.full_weight(), whole)  # nobody has broadcast a shard


def test_beside_replicated_layers() -> None:
    run_on_ranks(whole_model, 2)
