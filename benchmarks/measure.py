"""How every benchmark is timed: correctness first, then all peers in turns, in one process.

Peers are interleaved, so that a busy machine slows all of them alike; a row holds the median and the spread over the
rounds, and ``ratio``, how many times as long as maskgrad the peer takes (median over median).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["Peers", "measure"]

OURS = "maskgrad"
Peers = Mapping[str, Callable[[], Any]]


def measure(
    family: str,
    case: str,
    peers: Peers,
    *,
    goals: Mapping[str, tuple[str, float]] | None = None,
    check: Callable[[Any, Any], None] = torch.testing.assert_close,
    rounds: int = 21,
) -> list[dict[str, Any]]:
    """Time ``peers`` (one of them ``"maskgrad"``): one row for each.

    Args:
        family: the kind of operation; the name of the file that measures it.
        case: the shape, in words.
        peers: name -> what to call. All results must agree with maskgrad's.
        goals: peer -> ``(">=", ratio)`` or ``("<=", ratio)``, what ``ratio`` should be.
        check: called with maskgrad's result and each other one; raises if they differ. Nothing is timed before.
        rounds: how often each peer runs.
    """
    expected = peers[OURS]()
    for name, call in peers.items():
        if name != OURS:
            check(expected, call())
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, call in peers.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    ours = statistics.median(times[OURS])
    rows = []
    for name, taken in times.items():
        median = statistics.median(taken)
        ratio = median / ours
        relation, bound = (goals or {}).get(name, ("", 0.0))
        tenths = statistics.quantiles(taken, n=10)
        rows.append(
            {
                "family": family,
                "case": case,
                "peer": name,
                "median_ms": median,
                "p10": tenths[0],
                "p90": tenths[-1],
                "ratio": ratio,
                "goal": f"{relation} {bound:g}" if relation else "",
                "met": {">=": ratio >= bound, "<=": ratio <= bound}.get(relation, ""),
            }
        )
    return rows
