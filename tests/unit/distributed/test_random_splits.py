"""A batch cut at random into micro-batches, ranks and sequence shards: the gradients of one process on all of it."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any, NamedTuple

import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import maskgrad as mg
from tests.effort import examples
from tests.ranks import run_on_ranks
from tests.unit.distributed.test_accumulation import wrapped
from tests.unit.gradients.test_accumulation import (
    EXACT,
    LENGTH,
    LOSSES,
    Words,
    batch,
    check,
    dense,
    expected,
    masked_numbers,
    part_of,
)

ROWS = 9


class Cut(NamedTuple):
    """Where each piece of the batch goes."""

    mean: str
    kind: str
    """What wraps the model."""
    ranks: list[list[tuple[list[int], int, int]]]
    """For each rank its micro-batches: rows, and the positions of the sequences from where to where."""


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    """Sequences cut at the same random places, and each shard of each row in one micro-batch, somewhere."""
    mean = draw(st.sampled_from(["token-mean", "token-mean", "seq-mean-token-mean"]))
    kind = draw(st.sampled_from(["plain", "ddp", "prepare"]))
    number = draw(st.integers(1, 3 if mean == "token-mean" else 1))  # for sequence means a sequence is whole
    ends = [0, *sorted(draw(st.integers(0, LENGTH)) for _ in range(number - 1)), LENGTH]
    shards = list(itertools.pairwise(ends))
    dice = draw(st.randoms(use_true_random=False))
    return Cut(mean, kind, _dealt(dice, shards, draw(st.integers(1, 3))))


def _dealt(
    dice: random.Random, shards: list[tuple[int, int]], world_size: int
) -> list[list[tuple[list[int], int, int]]]:
    ranks: list[list[tuple[list[int], int, int]]] = [[] for _ in range(world_size)]
    for start, end in shards:
        pieces: list[list[int]] = [[] for _ in range(dice.randint(1, 5))]
        for row in dice.sample(range(ROWS), ROWS):
            dice.choice(pieces[: dice.randint(1, len(pieces))]).append(row)
        among = dice.sample(ranks, dice.randint(1, world_size))  # the others have nothing of this shard
        for rows in pieces:
            dice.choice(among).append((rows, start, end))
    return ranks


def shard_of(b: dict[str, Tensor], rows: list[int], start: int, end: int) -> dict[str, Tensor]:
    """What a rank of a sequence-parallel group holds of some rows."""
    some = part_of(b, rows)
    lengths = (some.pop("lengths") - start).clamp(0, end - start)
    return {name: tensor[:, start:end] for name, tensor in some.items()} | {"lengths": lengths}


def _of_samples(net: nn.Module, b: dict[str, Tensor]) -> dict[str, Any]:
    """Plain numbers, the mean of each sequence, and how many sequences have one."""
    means = masked_numbers(net, b)["losses"].mean(dim=1)
    return {"losses": means.filled(0.0), "count": means.num_specified()}


FORMS = {
    "token-mean": LOSSES,
    "seq-mean-token-mean": {
        name: loss for name, loss in LOSSES.items() if name not in ("plain_with_count", "mean_with_count")
    }
    | {"of_samples": _of_samples},
}


@functools.cache
def truth(name: str, mean: str) -> tuple[Tensor, dict[str, Any]]:
    return expected(masked_numbers if name == "of_samples" else LOSSES[name], mean)


def _accumulated(rank: int, world_size: int, cut: Cut) -> dict[str, Any]:
    found = {}
    for name, loss in FORMS[cut.mean].items():
        net, b = Words(), batch(ROWS)
        model = wrapped(cut.kind, net)
        accumulator = mg.GradientAccumulator(model, mean=cut.mean)
        for rows, start, end in cut.ranks[rank]:
            accumulator.backward(**loss(model, shard_of(b, rows, start, end)))
        found[name] = accumulator.finish(), dense(net)
    return found


@settings(max_examples=examples(10))
@given(cuts())
def test_any_split_is_the_whole_batch(cut: Cut) -> None:
    event(f"{cut.mean}, {len(cut.ranks)} ranks, {cut.kind}")
    for answer in run_on_ranks(_accumulated, len(cut.ranks), cut):
        assert list(answer) == list(FORMS[cut.mean])
        for name, (mean, gradients) in answer.items():
            whole, wanted = truth(name, cut.mean)
            torch.testing.assert_close(mean, whole, msg=lambda m, n=name: f"{n}: {m}", **EXACT)
            check(gradients, wanted, **EXACT)
