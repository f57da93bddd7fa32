"""A batch cut at random into micro-batches, ranks and sequence shards: the gradients of one process on all of it."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import maskgrad as mg
from tests.effort import examples
from tests.ranks import run_on_ranks
from tests.unit.gradients import test_accumulation as alone
from tests.unit.gradients.test_accumulation import EXACT, LENGTH, LOSSES, masked_numbers

ROWS = 9
Piece = tuple[list[int], int, int]


def wrapped(kind: str, net: Any) -> Any:
    if kind == "ddp":
        net.table.sparse = False
        return nn.parallel.DistributedDataParallel(net)
    return mg.distributed.prepare(net) if kind == "prepare" else net


def dealt(dice: random.Random, shards: int, world_size: int) -> list[list[Piece]]:
    """For each rank its micro-batches: rows, and the positions of the sequences from where to where."""
    ends = [0, *sorted(dice.randint(0, LENGTH) for _ in range(shards - 1)), LENGTH]
    ranks: list[list[Piece]] = [[] for _ in range(world_size)]
    for start, end in itertools.pairwise(ends):
        pieces: list[list[int]] = [[] for _ in range(dice.randint(1, 5))]
        for row in dice.sample(range(ROWS), ROWS):
            dice.choice(pieces[: dice.randint(1, len(pieces))]).append(row)
        among = dice.sample(ranks, dice.randint(1, world_size))  # the others have nothing of this shard
        for rows in pieces:
            dice.choice(among).append((rows, start, end))
    return ranks


def shard_of(b: dict[str, Tensor], rows: list[int], start: int, end: int) -> dict[str, Tensor]:
    """What a rank of a sequence-parallel group holds of some rows."""
    some = alone.part_of(b, rows)
    lengths = (some.pop("lengths") - start).clamp(0, end - start)
    return {name: tensor[:, start:end] for name, tensor in some.items()} | {"lengths": lengths}


def of_samples(net: nn.Module, b: dict[str, Tensor]) -> dict[str, Any]:
    """Plain numbers, the mean of each sequence, and how many sequences have one."""
    means = masked_numbers(net, b)["losses"].mean(dim=1)
    return {"losses": means.filled(0.0), "count": means.num_specified()}


FORMS = {"token-mean": LOSSES, "seq-mean-token-mean": {**LOSSES, "of_samples": of_samples}}
truth = functools.cache(alone.expected)


def _accumulated(
    rank: int, world_size: int, mean: Any, kind: str, ranks: list[list[Piece]]
) -> dict[str, Any]:
    found = {}
    for name, loss in FORMS[mean].items():
        net, b = alone.Words(), alone.batch(ROWS)
        model = wrapped(kind, net)
        accumulator = mg.GradientAccumulator(model, mean=mean)
        for rows, start, end in ranks[rank]:
            accumulator.backward(**loss(model, shard_of(b, rows, start, end)))
        found[name] = accumulator.finish(), alone.dense(net)
    return found


@settings(max_examples=examples(10))
@given(
    mean=st.sampled_from(["token-mean", "token-mean", "seq-mean-token-mean"]),
    kind=st.sampled_from(["plain", "ddp", "prepare"]),
    shards=st.integers(1, 3),
    world_size=st.integers(1, 3),
    dice=st.randoms(use_true_random=False),
)
def test_any_split_is_the_whole_batch(
    mean: str, kind: str, shards: int, world_size: int, dice: random.Random
) -> None:
    shards = shards if mean == "token-mean" else 1  # for sequence means a sequence is whole
    for answer in run_on_ranks(_accumulated, world_size, mean, kind, dealt(dice, shards, world_size)):
        for name, (found, gradients) in answer.items():
            whole, wanted = truth(mean)
            torch.testing.assert_close(found, whole, msg=lambda m, n=name: f"{n}: {m}", **EXACT)
            alone.check(gradients, wanted, **EXACT)
