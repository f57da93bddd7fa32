"""Several steps of a lazily traced computation, and what they cost: compilations, operators run on the host, copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_xla
from torch import Tensor
from torch_xla.debug import metrics

STEPS = 8


@dataclass(frozen=True, slots=True)
class Cost:
    compilations: int
    on_the_host: dict[str, int]
    """How often each operator that XLA does not know was run on the host."""
    copies_to_the_host: int


def run(step: Callable[[int], Any], steps: int = STEPS, first: int = 0) -> tuple[list[Any], Cost]:
    """What ``step(k)`` returned for ``k = first, first + 1, …``, on the host, and what all of it cost.

    Results are kept as tensors of the device until the last step has been counted.
    """
    before, fallbacks, copies = _compilations(), _fallbacks(), _copies()
    kept = []
    for k in range(first, first + steps):
        result = step(k)  # kept while the graph is cut: what nobody holds is not computed
        torch_xla.sync(wait=True)
        kept.append(result)
    cost = Cost(
        _compilations() - before,
        {name: n - fallbacks.get(name, 0) for name, n in _fallbacks().items() if n > fallbacks.get(name, 0)},
        _copies() - copies,
    )
    return [torch.utils._pytree.tree_map_only(Tensor, lambda t: t.detach().cpu(), r) for r in kept], cost


def assert_one_graph(cost: Cost, compilations: int = 1) -> None:
    assert cost == Cost(compilations, {}, 0)


def _compilations() -> int:
    data = metrics.metric_data("CompileTime")
    return int(data[0]) if data else 0


def _copies() -> int:
    data = metrics.metric_data("TransferFromDeviceTime")
    return int(data[0]) if data else 0


def _fallbacks() -> dict[str, int]:
    return {
        name: metrics.counter_value(name) for name in metrics.counter_names() if name.startswith("aten::")
    }
