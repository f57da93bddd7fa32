"""Batches of so many tokens: which ones, in which order, and how they are dealt to ranks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import maskgrad as mg

Sampler = mg.interop.TokenBudgetSampler
LENGTHS = [17, 3, 0, 9, 20, 1, 1, 5, 12, 0, 7, 7, 2, 19, 4] * 7


def tokens(batch: list[int]) -> int:
    return sum(max(LENGTHS[i], 1) for i in batch)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("bucket", [1, 10, None])
@pytest.mark.parametrize("budget", [20, 33, 10_000])
def test_every_sequence_once_within_the_budget(shuffle: bool, bucket: int | None, budget: int) -> None:
    sampler = Sampler(LENGTHS, budget, shuffle=shuffle, bucket=bucket)
    batches = list(sampler)
    assert len(sampler) == len(batches)
    assert sorted(itertools.chain(*batches)) == list(range(len(LENGTHS)))
    assert all(0 < tokens(batch) <= budget for batch in batches)
    if bucket == 1 and not shuffle:
        assert list(itertools.chain(*batches)) == list(range(len(LENGTHS)))
    if not shuffle:  # none could have taken the next sequence too
        for batch, following in itertools.pairwise(batches):
            assert tokens([*batch, following[0]]) > budget


def test_similar_lengths_come_together() -> None:
    def padding(bucket: int | None) -> int:
        sampler = Sampler(LENGTHS, 40, shuffle=True, bucket=bucket)
        return sum(max(LENGTHS[i] for i in batch) * len(batch) for batch in sampler) - sum(LENGTHS)

    assert padding(None) < padding(25) < padding(1)
    assert padding(None) < 0.15 * sum(LENGTHS)


def test_epochs_are_different_and_repeatable() -> None:
    one, other = (Sampler(LENGTHS, 40, shuffle=True, seed=3) for _ in range(2))
    first = list(one)
    assert list(one) == list(other) == first
    one.set_epoch(1)
    assert list(one) != first
    other.set_epoch(1)
    assert list(one) == list(other)
    assert len(one) == len(list(one))
    one.set_epoch(0)
    assert list(one) == first
    assert list(Sampler(LENGTHS, 40, shuffle=True, seed=4)) != first
    assert list(Sampler(LENGTHS, 40)) == list(Sampler(LENGTHS, 40, seed=4))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 100])
def test_ranks(shuffle: bool, drop_last: bool, ranks: int) -> None:
    samplers = [
        Sampler(LENGTHS, 40, shuffle=shuffle, drop_last=drop_last, num_replicas=ranks, rank=rank)
        for rank in range(ranks)
    ]
    dealt = [list(sampler) for sampler in samplers]
    assert len({len(batches) for batches in dealt}) == 1
    everything = sorted(itertools.chain(*itertools.chain(*dealt)))
    if drop_last:
        assert len(everything) == len(set(everything))
        assert ranks < 100 or everything == []
    else:
        assert set(everything) == set(range(len(LENGTHS)))
        alone = len(Sampler(LENGTHS, 40, shuffle=shuffle))
        assert len(dealt[0]) == -(-alone // ranks)


def test_the_batches_of_a_step_have_equal_work() -> None:
    lengths = torch.randint(30, 100, (5000,), generator=torch.Generator().manual_seed(0)).tolist()
    ranks = [
        list(Sampler(lengths, 100, shuffle=True, bucket=1, num_replicas=4, rank=rank)) for rank in range(4)
    ]
    steps = [[sum(lengths[i] for i in batch) for batch in step] for step in zip(*ranks, strict=True)]
    uneven = [max(step) - min(step) for step in steps]
    assert sorted(uneven)[len(uneven) // 2] <= 1


def test_the_last_batch_may_be_dropped() -> None:
    assert list(Sampler([2, 2, 2, 2, 1], 4, bucket=1)) == [[0, 1], [2, 3], [4]]
    assert list(Sampler([2, 2, 2, 2, 1], 4, bucket=1, drop_last=True)) == [[0, 1], [2, 3]]
    assert list(Sampler([2, 2, 2, 2], 4, bucket=1, drop_last=True)) == [[0, 1], [2, 3]]
    assert list(Sampler([2], 4, drop_last=True)) == []
    for nothing in ([], torch.tensor([], dtype=torch.int64)):
        assert list(Sampler(nothing, 4, num_replicas=2, rank=1)) == list(Sampler(nothing, 4)) == []


def test_invalid_arguments_are_refused() -> None:
    def refused(error: type[Exception], words: str, *args: Any, **kwargs: Any) -> None:
        with pytest.raises(error, match=words):
            Sampler(*args, **kwargs)

    refused(
        ValueError,
        r"budget 4 can contain sequence 1 of length 9 \(one of 2\); raise budget to 12",
        [1, 9, 12],
        4,
    )
    refused(ValueError, r"lengths must be 0 or more, found -1 at 1", [1, -1], 4)
    refused(TypeError, r"lengths must be integers \(N,\), found torch.float32", [1.0], 4)
    refused(TypeError, r"lengths must be integers \(N,\), found torch.bool", [True], 4)
    refused(TypeError, r"lengths must be integers \(N,\), found torch.int64 of shape \(1, 2\)", [[1, 2]], 4)
    refused(TypeError, r"lengths must be integers \(N,\), found list", ["a"], 4)
    refused(TypeError, r"budget must be an integer, found 4.0", [1], 4.0)
    refused(TypeError, r"bucket must be an integer, found True", [1], 4, bucket=True)
    refused(ValueError, r"budget must be 1 or more, found 0", [1], 0)
    refused(ValueError, r"bucket must be 1 or more, found 0", [1], 4, bucket=0)
    for rank in (2, 5):
        refused(
            ValueError,
            rf"rank must lie from 0 to num_replicas - 1, found rank {rank} of 2",
            [1],
            4,
            num_replicas=2,
            rank=rank,
        )
    refused(ValueError, r"rank must be given with num_replicas=2", [1], 4, num_replicas=2)
