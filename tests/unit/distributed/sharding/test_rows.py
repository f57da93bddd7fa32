"""Trained on ranks, a table has after every step the values that one process gives it on the joint batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import maskgrad as mg
from maskgrad.distributed import ShardedEmbedding, ShardedEmbeddingBag
from tests.ranks import run_on_ranks
from tests.unit.optim.optimizers import CASES, Case

ROWS, COLUMNS, STEPS = 12, 2, 4
EACH = 6


def configurations() -> Iterator[tuple[Case, dict[str, Any]]]:
    """LAMB's steps have the length of the norm of the whole table."""
    for case in CASES.values():
        if case.variant in ("", "momentum") and not case.compares_entries:
            for unspecified, state in (("skip", "full"), ("zero", case.row_states[-1])):
                yield case, {"unspecified": unspecified, "state": state}


def losses(table: Any, index: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (table(index) - targets).square().sum(-1)


def trained(rank: int, world_size: int, case: Case, options: dict[str, Any], placement: Any) -> None:
    whole = torch.randn(ROWS, COLUMNS, dtype=torch.float64)
    table = ShardedEmbedding.from_pretrained(whole, freeze=False, padding_idx=1, placement=placement)
    one = mg.nn.Embedding.from_pretrained(whole.clone(), freeze=False, padding_idx=1)
    optimizer, reference = (case.mine(t.parameters(), **options) for t in (table, one))
    for step in range(STEPS):
        # Few rows, so that some idle and some are wanted by several ranks; no row of some rank in step 2.
        index = torch.randint(3 if step == 2 else ROWS, (world_size, EACH))
        targets = torch.randn(world_size, EACH, COLUMNS, dtype=torch.float64)
        optimizer.zero_grad()
        losses(table, index[rank], targets[rank]).mean().backward()
        optimizer.step()
        reference.zero_grad()
        losses(one, index, targets).mean().backward()
        reference.step()
        torch.testing.assert_close(table(index[rank]), one(index[rank]))
    one.flush()
    torch.testing.assert_close(table.full_weight(), one.weight.detach())
    own = table.placement.own_rows()
    optimizer.flush()
    for key, value in optimizer.state[table.weight].items():
        expected = reference.state[one.weight][key]
        if value.dim():
            torch.testing.assert_close(value[own >= 0], expected[own[own >= 0]])
        else:
            torch.testing.assert_close(value, expected)


def trained_with_all(rank: int, world_size: int) -> None:
    for number, (case, options) in enumerate(configurations()):
        placement = ("block", "cyclic", 0)[number % 3]
        try:
            trained(rank, world_size, case, options, placement)
        except AssertionError as error:
            raise AssertionError(f"{case} {options} {placement}: {error}") from error


def test_every_optimizer_steps_as_in_one_process() -> None:
    run_on_ranks(trained_with_all, 2)


def uneven(rank: int, world_size: int) -> None:
    """Losses divided by the global number of samples are added up; one rank has none."""
    whole = torch.randn(ROWS, COLUMNS, dtype=torch.float64)
    bag = ShardedEmbeddingBag.from_pretrained(whole, freeze=False, mode="mean", gradients="sum")
    one = torch.nn.EmbeddingBag.from_pretrained(whole.clone(), freeze=False, mode="mean")
    optimizers = [mg.optim.Adam(t.parameters(), lr=0.1, unspecified="zero") for t in (bag, one)]
    sizes = [5, 0, 2, 1][:world_size]
    for _ in range(3):
        batch = [torch.randint(ROWS, (size, 3)) for size in sizes]
        targets = [torch.randn(size, COLUMNS, dtype=torch.float64) for size in sizes]
        for optimizer in optimizers:
            optimizer.zero_grad()
        (losses(bag, batch[rank], targets[rank]).sum() / sum(sizes)).backward()
        losses(one, torch.cat(batch), torch.cat(targets)).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(bag.full_weight(), one.weight.detach())


def accumulated(rank: int, world_size: int) -> None:
    """Two micro-batches before a step, one of them by a second look-up in the same pass."""
    whole = torch.randn(ROWS, COLUMNS, dtype=torch.float64)
    table = ShardedEmbedding.from_pretrained(whole, freeze=False)
    one = torch.nn.Embedding.from_pretrained(whole.clone(), freeze=False)
    optimizers = [mg.optim.Adagrad(t.parameters(), lr=0.1, unspecified="skip") for t in (table, one)]
    index = torch.randint(ROWS, (3, world_size, EACH))
    for part in (index[:2], index[2:]):
        torch.stack([table(i[rank]).square().sum() for i in part]).sum().backward()
        torch.stack([one(i).square().sum() / world_size for i in part]).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    torch.testing.assert_close(table.full_weight(), one.weight.detach())


def test_uneven_batches_and_several_passes() -> None:
    run_on_ranks(uneven, 2)
    run_on_ranks(uneven, 4)
    run_on_ranks(accumulated, 2)
