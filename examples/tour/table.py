"""AdamW on a table of a million rows of which a batch reads a thousand: lazy and exact, beside PyTorch's."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import maskgrad as mg
from examples.movielens.bars import bars

from .part import Column, Part, seconds_of

__all__ = ["measure"]

WIDTH, READ, DECAY, RATE = 16, 1024, 1e-2, 1e-3
FIRST = "maskgrad AdamW, exact"
COLUMNS = {
    "ms per step": Column("{:.2f}", min, compared=True),
    "ms at the end": Column("{:,.0f}"),
    "ms in all": Column("{:,.0f}", min, compared=True),
    "off dense AdamW by": Column("{:.1e}"),
}
#: sparse gradients?, and the optimizer
WAYS: dict[str, tuple[bool, Callable[[Any], torch.optim.Optimizer]]] = {
    FIRST: (True, lambda p: mg.optim.AdamW(p, RATE, weight_decay=DECAY, unspecified="zero")),
    "maskgrad AdamW, lazy": (True, lambda p: mg.optim.AdamW(p, RATE, weight_decay=DECAY)),
    "torch SparseAdam (no decay)": (True, lambda p: torch.optim.SparseAdam(p, RATE)),
    "torch AdamW, dense": (False, lambda p: torch.optim.AdamW(p, RATE, weight_decay=DECAY)),
}


def measure(seed: int = 0, steps: int = 30, rows: int = 1_000_000) -> Part:
    """The same table and the same batches for each; the exact one brings all rows up to date at the end."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(rows, WIDTH, generator=generator)
    batches = [torch.randint(rows, (READ,), generator=generator) for _ in range(steps)]
    # some rows come back after others have been read: it is on them that lazy and exact differ most
    batches = [torch.cat([batch[: READ // 2], batches[0][: READ // 2]]) for batch in batches]
    found: dict[str, dict[str, float]] = {}
    tables: dict[str, Tensor] = {}
    for name, (sparse, make) in WAYS.items():
        # mg.nn's brings rows up to date when it reads them; PyTorch's would read old values, and be warned about
        kind = mg.nn.Embedding if "maskgrad" in name else nn.Embedding
        table = kind(rows, WIDTH, sparse=sparse, _weight=start.clone())
        optimizer = make(table.parameters())

        def step(batch: Tensor, table: nn.Embedding = table, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            table(batch).square().mean().backward()
            optimizer.step()

        times = [seconds_of(partial(step, batch)) for batch in batches]
        found[name] = {"ms per step": 1e3 * statistics.median(times)}
        if name == FIRST:
            found[name]["ms at the end"] = 1e3 * seconds_of(partial(mg.optim.flush, table))
        # what is put off until the end is part of the price: per step alone, the exact way would look too cheap
        found[name]["ms in all"] = 1e3 * sum(times) + found[name].get("ms at the end", 0.0)
        tables[name] = table.weight.detach()
    dense = tables["torch AdamW, dense"]
    for name, weight in tables.items():
        found[name]["off dense AdamW by"] = (weight - dense).abs().max().item()
    exact, slow = found[FIRST], found["torch AdamW, dense"]
    share = exact["ms in all"] / slow["ms in all"]
    quickest = min(found, key=lambda name: found[name]["ms in all"])
    finding = (
        f"AdamW, {rows:,} rows, {steps} steps: exact on sparse gradients takes {share:.2f} of dense's time in all "
        f"and differs by {exact['off dense AdamW by']:.0e}; {quickest} is fastest"
    )
    bars_of = {name: {"all": row["ms in all"]} for name, row in found.items()}
    return Part(
        "table",
        finding,
        COLUMNS,
        found,
        lambda ax: bars(
            bars_of,
            ax,
            xlabel=f"time of {steps} steps and what is left for the end (ms)",
            number_format="{:,.0f}",
        ),
    )
