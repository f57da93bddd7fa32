"""A mistake on one rank is an error on all of them, soon; so is the end of one."""

from __future__ import annotations

import os
import pickle
from datetime import timedelta
from typing import Any

import pytest
import torch

from maskgrad.distributed import ShardedEmbedding
from tests.ranks import Failure, outcomes_on_fresh_ranks, run_on_ranks


def attempts(rank: int, world_size: int) -> list[str]:
    told: list[str] = []

    def attempt(action: Any) -> None:
        with pytest.raises((ValueError, TypeError, IndexError, RuntimeError)) as error:
            action()
        told.append(f"{error.typename}: {error.value}")

    a, b = ShardedEmbedding(4, 2), ShardedEmbedding(5, 2)
    ones = torch.tensor([[1]])
    attempt(lambda: a(torch.tensor([[1], [4]]) if rank == 1 else ones))
    attempt(lambda: a(torch.tensor([-1]) if rank == 0 else ones))
    attempt(lambda: a(ones.double() if rank == 1 else ones))
    attempt(lambda: a([1] if rank == 1 else ones))
    attempt(lambda: a(ones.to("meta") if rank == 1 else ones))
    attempt(lambda: (a if rank == 0 else b)(ones))
    attempt(lambda: ShardedEmbedding(4 + rank, 2))
    attempt(lambda: ShardedEmbedding(4, 2, padding_idx=9 if rank else None))
    a.weight.requires_grad_(rank == 0)
    attempt(lambda: a(ones))
    a.weight.requires_grad_()
    a(ones).sum().backward()  # the ranks still understand each other
    assert a.weight.grad is not None
    return told


def test_a_mistake_on_one_rank_is_an_error_on_all() -> None:
    here, there = run_on_ranks(attempts, 2)
    outside = "ShardedEmbedding: index {} at position {} is outside the table (expected 0 <= index < 4)"
    expected = [
        ("IndexError", 1, outside.format(4, 1)),
        ("IndexError", 0, outside.format(-1, 0)),
        ("TypeError", 1, "indices must be int32 or int64, got torch.float64; index.long() converts"),
        ("TypeError", 1, "indices must be a tensor, got list"),
        ("ValueError", 1, "indices are on meta, the table is on cpu"),
        ("RuntimeError", None, "Rank 0 has num_embeddings=4, rank 1 has num_embeddings=5; make them equal"),
        (
            "RuntimeError",
            None,
            "ShardedEmbedding: the ranks disagree; nothing was changed. Rank 0 has num_embed",
        ),
        ("ValueError", 1, "padding_idx must be one of the 4 rows; got 9"),
        ("RuntimeError", None, "Rank 0 has a gradient, rank 1 has no gradient; make them equal"),
    ]
    for (kind, culprit, text), *answers in zip(expected, here, there, strict=True):
        for rank, told in enumerate(answers):
            assert told.startswith(kind)
            assert text in told
            assert (f"rank {culprit} raised an error, so every rank does" in told) == (
                culprit not in (None, rank)
            )


def one_rank_ends(rank: int, world_size: int) -> None:
    table = ShardedEmbedding(4, 2)
    if rank == 1:
        os._exit(3)
    table(torch.tensor([0, 3]))


def test_the_end_of_a_rank_is_an_error_within_the_timeout_of_the_group() -> None:
    alive, dead = outcomes_on_fresh_ranks(one_rank_ends, 2, group_timeout_s=30.0, timeout_s=90.0)
    assert isinstance(dead, Failure)
    assert dead.died
    assert isinstance(alive, Failure)
    assert (
        "LostRankError: ShardedEmbedding: the exchange failed on rank 0 of 2. Another rank has ended"
        in alive.text
    )


def one_rank_stays_away(rank: int, world_size: int) -> None:
    torch.distributed.barrier()
    group = torch.distributed.new_group(timeout=timedelta(seconds=2))  # the others' group is not harmed
    found = ShardedEmbedding(4, 2, process_group=group)(torch.tensor([0, 3]))
    if rank == 0:
        with pytest.raises(RuntimeError, match="also with an empty batch"):
            found.sum().backward()


def test_a_rank_that_stays_away_from_backward_is_missed() -> None:
    run_on_ranks(one_rank_stays_away, 2)


def groups_of_two(rank: int, world_size: int) -> None:
    groups = [torch.distributed.new_group([0, 2]), torch.distributed.new_group([1, 3])]
    whole = torch.arange(6.0).view(3, 2) + rank % 2
    table = ShardedEmbedding.from_pretrained(whole, process_group=groups[rank % 2])
    assert (table.ranks.rank, table.ranks.size) == (rank // 2, 2)
    assert torch.equal(table(torch.tensor([2, 0])), whole[[2, 0]])
    with pytest.raises(ValueError, match="ShardedEmbedding: this process is not in the process group"):
        ShardedEmbedding(3, 2, process_group=groups[1 - rank % 2])
    with pytest.raises(TypeError, match="cannot be pickled: the group exists in these processes only"):
        pickle.dumps(table)


def test_tables_of_a_part_of_the_ranks() -> None:
    run_on_ranks(groups_of_two, 4)
