"""The five lines of the page about benchmarks: what was measured of a few tasks, two of which maskgrad loses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.goals import Goal
from benchmarks.results import Row

__all__ = ["HEADLINES", "headlines"]

#: which rows, and how the task and the peer are called there; of several rows the worst counts
HEADLINES: tuple[tuple[Goal, str, str], ...] = (
    (
        Goal("reductions", "mean(1)", "torch.masked", ">=", 1),
        "mean of each row, 4096 × 4096, half of it missing",
        "`torch.masked`",
    ),
    (
        Goal("ragged", "two encoder layers", "by-hand", ">=", 1, work="*", shape="*", density=0.65, note=""),
        "two Transformer layers on sequences of different lengths, trained, `torch.jagged`",
        "padding and masks by hand",
    ),
    (
        Goal(
            "updates",
            "AdamW zero",
            "torch.optim-dense",
            ">=",
            1,
            work="step",
            shape="*",
            density=None,
            note="4096*",
        ),
        "AdamW with decay on 4,096 rows of a large table, exactly as on dense gradients",
        "`torch.optim.AdamW`, dense",
    ),
    (
        Goal("models", "MLP", "by-hand", ">=", 1, work="*", shape="*", density=None),
        "a small MLP with missing inputs, trained",
        "masks by hand",
    ),
    (
        Goal(
            "updates", "SGD", "torch.optim", ">=", 1, work="step", shape="*", density=None, note="512 rows*"
        ),
        "SGD on 512 rows of a table",
        "`torch.optim.SGD`",
    ),
)


def headlines(rows: Iterable[Row], of: Sequence[tuple[Goal, str, str]] = HEADLINES) -> str:
    """A line for each task that was measured: how many times as fast, or as long, maskgrad takes."""
    rows = list(rows)
    lines = ["| task | compared with | maskgrad is | |", "| --- | --- | --- | :---: |"]
    for goal, task, peer in of:
        concerned = [row for row in rows if goal.concerns(row)]
        if concerned:
            ratio = goal.worst(concerned).ratio
            said = (
                f"{_two_digits(ratio)} times as fast"
                if ratio >= 1
                else f"{_two_digits(1 / ratio)} times as slow"
            )
            lines.append(f"| {task} | {peer} | {said} | {'✓' if ratio >= 1 else '✗'} |")
    return "\n".join(lines)


def _two_digits(number: float) -> str:
    return f"{float(f'{number:.2g}'):g}"
