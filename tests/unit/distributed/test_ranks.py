"""The processes that the other tests here run on."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed

from tests.ranks import Failure, outcomes_on_fresh_ranks, run_on_ranks


def _sum_of_ranks(rank: int, world_size: int, scale: float) -> float:
    x = torch.full((2,), scale * rank)
    torch.distributed.all_reduce(x)
    return float(x.sum())


def _second_rank_raises(rank: int, world_size: int) -> None:
    if rank == 1:
        raise ValueError("broken on purpose")


def _second_rank_dies(rank: int, world_size: int) -> None:
    if rank == 1:
        os._exit(3)


def test_each_rank_answers() -> None:
    assert run_on_ranks(_sum_of_ranks, 2, 3.0) == [6.0, 6.0]


def test_a_failing_rank_fails_the_test_and_the_next_one_runs() -> None:
    with pytest.raises(pytest.fail.Exception, match="rank 1: ValueError: broken on purpose"):
        run_on_ranks(_second_rank_raises, 2)
    assert run_on_ranks(_sum_of_ranks, 2, 1.0) == [2.0, 2.0]


def test_a_dead_rank_is_told_from_a_failing_one() -> None:
    alive, dead = outcomes_on_fresh_ranks(_second_rank_dies, 2)
    assert alive is None
    assert isinstance(dead, Failure)
    assert dead.died
    assert "exit code 3" in dead.text
