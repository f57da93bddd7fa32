"""A clock that only moves when told to, and cases to be timed with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.case import OURS, Case, Comparison, Implementation


class Stopwatch:
    """Time is what the contenders say they took."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def takes(self, seconds: float, result: Any = 1.0) -> Callable[[], Implementation]:
        """A contender that takes so long."""

        def call() -> torch.Tensor:
            self.now += seconds
            return torch.as_tensor(result)

        return lambda: Implementation(call)


def case(contenders: dict[str, Callable[[], Implementation]], expected: Any = 1.0, **facts: Any) -> Case:
    """A case whose right result is ``expected``."""

    def verify(found: torch.Tensor) -> None:
        torch.testing.assert_close(found, torch.as_tensor(expected))

    def prepare() -> Comparison:
        return Comparison(contenders, verify, bytes_moved=facts.get("bytes_moved"))

    named = {"family": "reductions", "operation": "mean(1)", "work": "forward", "shape": (4096, 4096)}
    named |= {"density": 0.5, "dtype": "float32"} | {k: v for k, v in facts.items() if k != "bytes_moved"}
    return Case(**named, prepare=prepare)


def ours_and(**peers: Callable[[], Implementation]) -> dict[str, Callable[[], Implementation]]:
    """Contenders by name; ``ours`` stands for maskgrad, underscores for dots."""
    return {OURS if name == "ours" else name.replace("_", "."): make for name, make in peers.items()}
