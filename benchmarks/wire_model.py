"""What a training step sends over the wire, and how long that takes, on paper.

The model of Hockney: a message of n bytes takes ``latency + n / bandwidth``; each rank sends and receives at the same
time, at full bandwidth, and one message after the other. Computation is left out. Three ways to train a table:

- every rank has all rows, gradients are dense: a ring all-reduce of the whole table;
- every rank has all rows, gradients are sparse: each rank gets the lists of all others (``all_reduce_gradients``);
- every rank has some rows: indices, rows and gradients go all-to-all (``ShardedEmbedding``).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Cost",
    "Network",
    "Table",
    "crossover_density",
    "dense_all_reduce",
    "distinct_rows",
    "sharded_step",
    "sparse_all_gather",
]

_COUNT_BYTES = 24  # what announces a look-up to another rank: three numbers
_BINS = 2000


@dataclass(frozen=True)
class Network:
    """Ranks, and what connects each pair of them.

    Attributes:
        ranks: how many.
        bandwidth: bytes per second that a rank can send, and as many receive.
        latency: seconds that any message takes.
    """

    ranks: int
    bandwidth: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        if self.ranks < 1 or not self.bandwidth > 0 or not self.latency >= 0:
            raise ValueError(
                f"a network needs ranks >= 1, bandwidth > 0 and latency >= 0; got {self.ranks}, {self.bandwidth}, "
                f"{self.latency}"
            )


@dataclass(frozen=True)
class Table:
    """A table of rows.

    Attributes:
        rows: how many in all.
        width: entries of a row.
        value_bytes: of an entry; gradients of halves travel in float32.
        index_bytes: of a row's number; 4 as long as a rank has less than 2**31 rows.
    """

    rows: int
    width: int
    value_bytes: int = 4
    index_bytes: int = 4

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * self.value_bytes

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a row's gradient."""
        return self.width * max(self.value_bytes, 4)


@dataclass(frozen=True)
class Cost:
    """What the busiest rank does in a step.

    Attributes:
        bytes: that it sends or receives, whichever are more.
        messages: that it waits for one after the other.
    """

    bytes: float
    messages: float

    def seconds(self, network: Network) -> float:
        """Time on the wire."""
        return self.messages * network.latency + self.bytes / network.bandwidth


def distinct_rows(
    rows: int, draws: int, exponent: float = 0.0, part: tuple[float, float] = (0.0, 1.0)
) -> float:
    r"""How many distinct rows a batch is expected to need.

    .. math:: \sum_{i} 1 - (1 - p_i)^n, \qquad p_i \propto i^{-s}

    Args:
        rows: N, of the table.
        draws: n, the indices of a batch.
        exponent: s: 0, all rows are as likely; 1, the law of Zipf.
        part: count those between two fractions of the table only, the most frequent rows first.

    Returns:
        The expectation; exact up to 2,000 rows, beyond that to about a thousandth.

    Raises:
        ValueError: numbers below zero, or a part that is none.

    Example:
        >>> from benchmarks.wire_model import distinct_rows
        >>> round(distinct_rows(1000, 1000))  # 1 - 1/e of them
        632
        >>> round(distinct_rows(1000, 1000, exponent=1.0))
        334

    Source: the occupancy problem; W. Feller, "An Introduction to Probability Theory", I, section II.5.
    """
    low, high = part
    if rows < 1 or draws < 0 or exponent < 0 or not 0 <= low <= high <= 1:
        raise ValueError(
            f"rows >= 1, draws >= 0, exponent >= 0 and a part of (0, 1) are needed; got {rows}, {draws}, {exponent}, "
            f"{part}"
        )
    edges = sorted({*_edges(rows), round(low * rows), round(high * rows)})
    bins = list(itertools.pairwise(edges))
    # Rows first+1 … last, all as likely as the middle one.
    weights = [_middle(first, last) ** -exponent for first, last in bins]
    total = math.fsum(weight * (last - first) for weight, (first, last) in zip(weights, bins, strict=True))
    return math.fsum(
        (last - first) * _seen(weight / total, draws)
        for weight, (first, last) in zip(weights, bins, strict=True)
        if low * rows <= first + 0.5 and last - 0.5 <= high * rows
    )


def dense_all_reduce(network: Network, table: Table) -> Cost:
    """A ring all-reduce of the gradient of the whole table: twice the table, but for what a rank has already."""
    others = network.ranks - 1
    return Cost(2 * others / network.ranks * table.rows * table.gradient_bytes, 2 * others)


def sparse_all_gather(network: Network, table: Table, distinct: float) -> Cost:
    """All ranks exchange lists of ``distinct`` rows with their gradients: each receives those of all others."""
    others = network.ranks - 1
    return Cost(others * distinct * (table.index_bytes + table.gradient_bytes), others)


def sharded_step(
    network: Network,
    table: Table,
    draws: int,
    exponent: float = 0.0,
    placement: Literal["block", "cyclic"] = "cyclic",
) -> Cost:
    """A look-up of ``draws`` indices on each rank, and its gradient, in a table whose rows are spread.

    Args:
        network: who takes part.
        table: of which each rank has its share.
        draws: indices on each rank.
        exponent: how unevenly they are spread, as for :func:`distinct_rows`; the most frequent rows come first.
        placement: ``"block"``: the first rank has the most frequent rows, and is the busiest.

    Example:
        >>> from benchmarks.wire_model import Network, Table, sharded_step
        >>> network, table = Network(100, bandwidth=3e9, latency=1e-5), Table(10**9, 64)
        >>> cyclic, block = (sharded_step(network, table, 10_000, 1.0, p).bytes for p in ("cyclic", "block"))
        >>> round(block / cyclic)
        35
    """
    ranks, others = network.ranks, network.ranks - 1
    wanted = distinct_rows(table.rows, draws, exponent)
    # The rank with the most frequent rows is asked most, the one with the rarest asks the others most.
    parts = [(0.0, 1 / ranks), (1 - 1 / ranks, 1.0)] if placement == "block" else []
    served = [distinct_rows(table.rows, draws, exponent, part) for part in parts] or [wanted / ranks]
    listed = table.index_bytes + table.gradient_bytes
    busiest = 0.0
    for own in served:
        foreign, asked = wanted - own, others * own
        sent = foreign * listed + asked * table.row_bytes
        received = asked * listed + foreign * table.row_bytes
        busiest = max(busiest, sent, received)
    return Cost(busiest + others * _COUNT_BYTES, 4 * others)


def crossover_density(network: Network, table: Table) -> float:
    r"""Up to which share of rows in a rank's gradient a sparse exchange sends fewer bytes than a dense one.

    .. math:: \frac{m}{N} = \frac{2}{W}\, \frac{g}{g + i}

    with gradients of g bytes a row, indices of i bytes, and W ranks.

    Example:
        >>> from benchmarks.wire_model import Network, Table, crossover_density
        >>> round(crossover_density(Network(8, 1e9), Table(1000, 64)), 3)
        0.246
    """
    return 2 / network.ranks * table.gradient_bytes / (table.gradient_bytes + table.index_bytes)


def _edges(rows: int) -> list[int]:
    """Bounds of bins that begin with single rows, and then grow in proportion."""
    if rows <= _BINS:
        return list(range(rows + 1))
    singles = _BINS // 2
    ratio = (rows / singles) ** (1 / (_BINS - singles))
    return [*range(singles + 1), *(round(singles * ratio**k) for k in range(1, _BINS - singles)), rows]


def _middle(first: int, last: int) -> float:
    """The geometric mean of the numbers of rows first+1 … last."""
    return math.sqrt((first + 1) * last)


def _seen(probability: float, draws: int) -> float:
    """Whether something of this probability occurs in so many draws."""
    if probability >= 1:
        return float(draws > 0)
    return -math.expm1(draws * math.log1p(-probability))
