"""Several steps of a lazily traced computation, and what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch_xla
from torch import Tensor
from torch_xla.debug import metrics

STEPS = 8
#: One compilation; nothing is copied to the host, and no operator that XLA does not know is run there.
ONE_GRAPH = {"CompileTime": 1}


def run(step: Callable[[int], Any], steps: int = STEPS, first: int = 0) -> tuple[list[Any], dict[str, int]]:
    """What ``step(k)`` returned for ``k = first, first + 1, …``, on the host, and how often what was done for it.

    Results are kept as tensors of the device until the last step has been counted.
    """
    before, kept = _counted(), []
    for k in range(first, first + steps):
        result = step(k)  # kept while the graph is cut: what nobody holds is not computed
        torch_xla.sync(wait=True)
        kept.append(result)
    cost = dict(_counted() - before)
    return [torch.utils._pytree.tree_map_only(Tensor, lambda t: t.detach().cpu(), r) for r in kept], cost


def _counted() -> Counter[str]:
    timed = {name: metrics.metric_data(name) for name in ("CompileTime", "TransferFromDeviceTime")}
    on_the_host = {name: metrics.counter_value(name) for name in metrics.counter_names() if "aten::" in name}
    return Counter({name: int(data[0]) for name, data in timed.items() if data} | on_the_host)
