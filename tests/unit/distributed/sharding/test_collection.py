"""Several tables in one exchange give what each gives alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad.distributed import ShardedEmbedding, ShardedEmbeddingBag, ShardedTables, spread_tables
from tests.ranks import run_on_ranks


def tables_of(world_size: int) -> ShardedTables:
    where = spread_tables({"user": 30, "film": 50, "word": 20})
    return ShardedTables(
        {
            "user": ShardedEmbedding(10, 3, placement=where["user"], gradients="sum"),
            "film": ShardedEmbedding(
                10, 5, placement=where["film"], dtype=torch.float64, padding_idx=0, gradients="sum"
            ),
            "word": ShardedEmbeddingBag(10, 2, mode="sum", gradients="sum"),
            "short": ShardedEmbedding(10, 1, placement="cyclic", dtype=torch.float16, gradients="sum"),
            "idle": ShardedEmbedding(3, 1, gradients="sum"),
        }
    )


def inputs_of(rank: int) -> dict[str, Any]:
    index = torch.tensor([[0, 9, 9], [3, 0, 1]]) + 0 * rank
    given = {
        "short": index[:, 0],
        "word": (index.view(-1), torch.tensor([0, 2]), torch.arange(6.0)),
        "user": index if rank < 2 else index[:0],
        "film": mg.masked(index, index != 9),
    }
    return given if rank % 2 else dict(reversed(given.items()))


def together(rank: int, world_size: int) -> None:
    tables = tables_of(world_size)
    found = tables(inputs_of(rank))
    alone: dict[str, Any] = {}
    for name in found:  # the same order everywhere: that of the tables
        given = inputs_of(rank)[name]
        alone[name] = tables.tables[name](*(given if isinstance(given, tuple) else (given,)))
    assert list(found) == ["user", "film", "word", "short"]
    for answers in (found, alone):
        tables.zero_grad()
        # The rows of "short" are looked up and not used.
        (answers["user"].square().sum().double() + answers["word"].sum() + answers["film"].sum()).backward()
        kept = {name: None if p.grad is None else p.grad.to_dense() for name, p in tables.named_parameters()}
        if answers is found:
            first = kept
    assert {name for name, grad in first.items() if grad is not None} == {
        f"tables.{name}.weight" for name in ("user", "film", "word")
    }
    for name, grad in first.items():
        assert (grad is None) == (kept[name] is None)
        if grad is not None:
            assert torch.equal(grad, kept[name])
    assert torch.equal(found["film"].mask, alone["film"].mask)
    for name, answer in found.items():
        if name == "film":
            assert torch.equal(answer.filled(0.0), alone[name].filled(0.0))
        else:
            assert torch.equal(answer, alone[name])


@pytest.mark.parametrize("world_size", [2, 4])
def test_together_as_alone(world_size: int) -> None:
    together(0, 1)
    run_on_ranks(together, world_size)


def mistakes(rank: int, world_size: int) -> list[str]:
    tables, told = tables_of(world_size), []
    index = torch.tensor([1])
    wrong: list[dict[str, Any]] = [
        {"usr": index},
        {},
        {"user": (index, index)},
        {"user": ()},
        {"user": index, "film": torch.tensor([10])},
        {"film": index},  # right, but not what the other rank does
    ]
    for inputs in wrong:
        with pytest.raises((ValueError, TypeError, IndexError, RuntimeError)) as error:
            tables(inputs if rank == 0 else {"user": index, "film": index})
        told.append(f"{error.typename}: {error.value}")
    return told


def test_mistakes_are_told_on_every_rank() -> None:
    here, there = run_on_ranks(mistakes, 2)
    for text, (ours, theirs) in zip(
        (
            "ValueError: inputs contains 'usr'; the tables are 'user', 'film', 'word', 'short', 'idle'",
            "ValueError: inputs contains no table",
            "TypeError: inputs['user'] must be indices, or a tuple of at most 1 arguments; got 2",
            "TypeError: inputs['user'] must be indices, or a tuple of at most 1 arguments; got 0",
            "IndexError: ShardedTables, table 1: index 10 at position 0 is outside the table",
            "RuntimeError: ShardedTables: the ranks disagree; nothing was changed. Rank 0 has embedding_dim=5",
        ),
        zip(here, there, strict=True),
        strict=True,
    ):
        assert text in ours
        assert text.partition(": ")[2] in theirs
        assert text.partition(": ")[0] == theirs.partition(": ")[0]


def test_tables_that_cannot_be_together_are_refused() -> None:
    with pytest.raises(TypeError, match=r"tables\['a'\] must be a ShardedEmbedding.*got Embedding"):
        ShardedTables({"a": torch.nn.Embedding(1, 1)})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="at least one table"):
        ShardedTables({})
    with pytest.raises(
        ValueError, match=r"tables\['b'\] and tables\['a'\] differ in process_group or gradients"
    ):
        ShardedTables({"a": ShardedEmbedding(1, 1), "b": ShardedEmbedding(1, 1, gradients="sum")})


def spread(rank: int, world_size: int) -> dict[str, int]:
    return spread_tables({"a": 3, "b": 5, "c": 4, "d": 1})


def test_tables_are_spread_evenly() -> None:
    assert run_on_ranks(spread, 2) == [{"a": 1, "b": 0, "c": 1, "d": 0}] * 2
