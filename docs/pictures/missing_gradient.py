"""Draws missing_gradient.png: one row that is looked up six times, under both meanings of a missing gradient.

Run it from anywhere: ``python docs/pictures/missing_gradient.py``. The numbers come from the optimizers themselves.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import maskgrad as mg
from maskgrad.plot.canvas import COLORS, INK, LABEL_SIZE, TICK_SIZE, dress, figure

STEPS, TOUCHED = 60, (0, 4, 8, 12, 38, 56)
OPTIONS = {"lr": 0.05, "weight_decay": 0.1}
ROW, OTHER = 0, 1  # the row we watch, and one that has a gradient at every step


def trajectory(optimizer: torch.optim.Optimizer, table: nn.Parameter, sparse: bool) -> list[float]:
    """What memory holds for the row before each step, and at the end."""
    seen = [table[ROW].item()]
    for step in range(STEPS):
        rows = [ROW, OTHER] if step in TOUCHED else [OTHER]
        gradient = torch.sparse_coo_tensor(
            [rows], torch.ones(len(rows), 1), table.shape, check_invariants=True
        )
        table.grad = gradient if sparse else gradient.to_dense()
        optimizer.step()
        seen.append(table[ROW].item())
    return seen


def table() -> nn.Parameter:
    """Two rows of one number."""
    return nn.Parameter(torch.ones(2, 1))


def main() -> None:
    """Run the three optimizers and write the picture next to this file."""
    p, q, r = table(), table(), table()
    dense = trajectory(torch.optim.AdamW([p], **OPTIONS), p, sparse=False)
    skip = trajectory(mg.optim.AdamW([q], **OPTIONS), q, sparse=True)
    lazy = mg.optim.AdamW([r], **OPTIONS, unspecified="zero")
    zero = trajectory(lazy, r, sparse=True)
    lazy.flush()
    zero[-1] = r[ROW].item()

    picture = figure(9, 4.9)
    ax = picture.subplots()
    steps = range(STEPS + 1)
    for step in TOUCHED:
        ax.axvline(step, color="#dddddd", linewidth=1, zorder=0)
    ax.plot(steps, dense, color=INK, linewidth=5, alpha=0.25, label="dense torch.optim.AdamW")
    ax.step(steps, skip, where="post", color=COLORS[1], linewidth=2.2, linestyle="--", label='"skip"')
    ax.step(steps, zero, where="post", color=COLORS[0], linewidth=1.6, label='"zero", as it lies in memory')
    current = [s + 1 for s in TOUCHED] + [STEPS]
    ax.plot(
        current,
        [zero[s] for s in current],
        "o",
        color=COLORS[0],
        markersize=7,
        label='"zero", when stepped or read',
    )
    low = min(skip + dense)
    ax.annotate(
        "idle: decay and\nmomentum go on", (25, dense[25]), (24, low + 0.13), fontsize=TICK_SIZE, color=INK,
        arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.8},
    )  # fmt: skip
    middle = (zero[38] + zero[39]) / 2
    ax.annotate(
        "all missed steps at once", (39, middle), (41, middle), fontsize=TICK_SIZE,
        color=COLORS[0], va="center", arrowprops={"arrowstyle": "-", "color": COLORS[0], "linewidth": 0.8},
    )  # fmt: skip
    ax.legend(fontsize=TICK_SIZE, frameon=False, labelcolor=INK, loc="lower left", handlelength=2.6)
    ax.set_xlim(-0.5, STEPS + 0.8)
    dress(ax, "A row with a gradient at six of 60 steps (grey lines)", "steps of the optimizer", None)
    ax.set_ylabel("value of the row", fontsize=LABEL_SIZE, color=INK)
    picture.savefig(Path(__file__).with_name("missing_gradient.png"))


if __name__ == "__main__":
    main()
