"""The model of the wire: expectations against enumeration and chance, bytes against those that are really sent."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.wire_model import (
    Network,
    Table,
    crossover_density,
    dense_all_reduce,
    distinct_rows,
    sharded_step,
    sparse_all_gather,
)
from maskgrad.distributed import ShardedEmbedding
from maskgrad.distributed.process_group import ProcessGroup
from tests.ranks import run_on_ranks


def test_distinct_rows_by_enumeration() -> None:
    for exponent in (0.0, 0.7, 2.0):
        weights = [i**-exponent for i in range(1, 5)]
        chance = [w / sum(weights) for w in weights]
        expected = sum(
            len(set(batch)) * torch.tensor([chance[i] for i in batch], dtype=torch.float64).prod().item()
            for batch in itertools.product(range(4), repeat=3)
        )
        assert distinct_rows(4, 3, exponent) == pytest.approx(expected)
    assert distinct_rows(1, 5) == 1.0
    assert distinct_rows(7, 0) == 0.0
    assert distinct_rows(10**12, 1) == pytest.approx(1)


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_distinct_rows_of_a_large_table(exponent: float) -> None:
    rows, draws = 50_000, 20_000
    weights = torch.arange(1, rows + 1, dtype=torch.float64) ** -exponent
    p = weights / weights.sum()
    seen = -torch.expm1(draws * torch.log1p(-p))
    assert distinct_rows(rows, draws, exponent) == pytest.approx(seen.sum().item(), rel=1e-3)
    for low, high in ((0.0, 0.25), (0.25, 0.3), (0.9, 1.0)):
        expected = seen[round(low * rows) : round(high * rows)].sum().item()
        assert distinct_rows(rows, draws, exponent, (low, high)) == pytest.approx(expected, rel=2e-3)
    assert sum(distinct_rows(rows, draws, exponent, (k / 7, (k + 1) / 7)) for k in range(7)) == pytest.approx(
        distinct_rows(rows, draws, exponent), rel=1e-3
    )


def test_costs() -> None:
    table, network = Table(1000, 16), Network(4, bandwidth=1e6, latency=1e-3)
    dense = dense_all_reduce(network, table)
    assert dense.bytes == 2 * 3 / 4 * 1000 * 64
    assert dense.seconds(network) == pytest.approx(6 * 1e-3 + dense.bytes / 1e6)
    assert sparse_all_gather(network, table, 10).bytes == 3 * 10 * 68
    at = crossover_density(network, table) * table.rows
    # A ring spares a rank what it has already, (W - 1) / W: so does a list; the two are then equal.
    assert sparse_all_gather(network, table, at).bytes == pytest.approx(dense.bytes)
    halves = Table(1000, 16, value_bytes=2)
    assert (halves.row_bytes, halves.gradient_bytes) == (32, 64)
    alone = Network(1, 1.0)
    assert dense_all_reduce(alone, table).bytes == sharded_step(alone, table, 10).bytes == 0
    # Where all rows are as likely, it does not matter where they lie.
    uniform = [sharded_step(network, table, 50, 0.0, p).bytes for p in ("block", "cyclic")]  # type: ignore[arg-type]
    assert uniform[0] == pytest.approx(uniform[1])


def bytes_of_a_step(rank: int, world_size: int, placement: Any, dtype: torch.dtype) -> tuple[int, int, int]:
    """What this rank has sent to others in a look-up and its gradient, how many rows it wants, and serves."""
    table = ShardedEmbedding(100, 8, placement=placement, dtype=dtype)
    index = torch.randint(100, (60,), generator=torch.Generator().manual_seed(rank))
    sent = 0
    exchange = ProcessGroup._all_to_all

    def count(
        ranks: ProcessGroup, arrived: Tensor, rows: Tensor, numbers: list[int], received: list[int]
    ) -> None:
        nonlocal sent
        sent += (sum(numbers) - numbers[rank]) * rows.shape[1:].numel() * rows.element_size()
        exchange(ranks, arrived, rows, numbers, received)

    ProcessGroup._all_to_all = count  # type: ignore[method-assign]
    try:
        table(index).sum().backward()
    finally:
        ProcessGroup._all_to_all = exchange  # type: ignore[method-assign]
    mine = torch.isin(index.unique(), table.placement.own_rows())
    all_indices = [
        torch.randint(100, (60,), generator=torch.Generator().manual_seed(r)) for r in range(world_size)
    ]
    served = sum(int(torch.isin(i.unique(), table.placement.own_rows()).sum()) for i in all_indices)
    return sent, int((~mine).sum()), served - int(mine.sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_bytes_are_those_that_are_sent(dtype: torch.dtype) -> None:
    table = Table(100, 8, value_bytes=dtype.itemsize)
    answers = run_on_ranks(bytes_of_a_step, 2, "cyclic", dtype)
    for sent, wanted, asked in answers:
        assert sent == 24 + wanted * (table.index_bytes + table.gradient_bytes) + asked * table.row_bytes
    predicted = sharded_step(Network(2, 1.0), table, 60).bytes
    assert max(sent for sent, *_ in answers) == pytest.approx(predicted, rel=0.1)


def test_what_was_measured_is_near_what_is_predicted() -> None:
    measured = Path(__file__).parents[3] / "docs" / "pictures" / "wire_model.csv"
    with measured.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["draws"] != "256"]
    assert len(rows) > 30
    for row in rows:
        network, table = Network(int(row["ranks"]), 1.0), Table(int(row["rows"]), int(row["width"]))
        draws, exponent = int(row["draws"] or 0), float(row["exponent"] or 0)
        if row["way"] == "dense":
            cost = dense_all_reduce(network, table)
        elif row["way"] == "sparse":
            cost = sparse_all_gather(network, table, distinct_rows(table.rows, draws, exponent))
        else:
            cost = sharded_step(network, table, draws, exponent, row["way"].split()[1])  # type: ignore[arg-type]
        excess = float(row["bytes"]) / cost.bytes - 1
        assert -0.01 < excess < (0.06 if row["mbits"] == "0" else 0.12), row


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a network needs ranks >= 1, .* got 2, 0, 0\.0"):
        Network(2, 0)
    with pytest.raises(ValueError, match=r"a part of \(0, 1\) are needed; got 5, 3, 0.0, \(0.5, 0.2\)"):
        distinct_rows(5, 3, part=(0.5, 0.2))
