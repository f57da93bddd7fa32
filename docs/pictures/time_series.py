"""Draws time_series.png: the error of forecasts from windows with holes, by what was done with holes in training.

Run it from anywhere: ``python docs/pictures/time_series.py``; the program of the page is trained, with three seeds.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pandas as pd
import torch

from maskgrad.plot.canvas import COLORS, TICK_SIZE, dress, figure

HERE = Path(__file__).parent
PROGRAM = runpy.run_path(str(HERE.parent / "how_do_i" / "programs" / "time_series.py"))
SEEDS = range(3)
PAST = PROGRAM["PAST"]


def filled(windows: torch.Tensor, value: float | None) -> torch.Tensor:
    """The windows, their past filled with a value, or with the hour before (at the start, the hour after)."""
    past = pd.DataFrame(windows[:, :PAST].numpy())
    past = past.ffill(axis=1).bfill(axis=1).fillna(1013.0) if value is None else past.fillna(value)
    return torch.cat([torch.tensor(past.to_numpy()), windows[:, PAST:]], 1)


def error(train: torch.Tensor, test: torch.Tensor) -> list[float]:
    """The pinball loss of a model trained on the one, for the other, with each seed."""
    losses = []
    for seed in SEEDS:
        model = PROGRAM["trained"](train, seed)
        with torch.no_grad():
            losses.append(float(PROGRAM["pinball"](model(test[:, :PAST]), test[:, PAST:])))
    return losses


def main() -> None:
    """Train, and write the picture next to this file."""
    train, test = PROGRAM["train"], PROGRAM["test"]
    holes = test[test[:, :PAST].isnan().any(1)]
    complete = train[~train.isnan().any(1)]
    found = {
        "holes filled with the hour before": error(filled(train, None), filled(holes, None)),
        "masked (the program below)": error(train, holes),
        "holes filled with the mean": error(filled(train, 1017.9), filled(holes, 1017.9)),
        "masked, trained on complete windows only": error(complete, holes),
    }
    picture = figure(9, 3.2)
    ax = picture.subplots()
    for row, (name, losses) in enumerate(found.items()):
        mean = sum(losses) / len(losses)
        ax.barh(row, mean, color=COLORS[0] if name.startswith("masked (") else "#bbbbbb", height=0.62)
        ax.plot(losses, [row] * len(losses), "o", color="#333333", markersize=3)
        ax.text(max(losses) + 0.015, row, f"{mean:.2f}", va="center", fontsize=TICK_SIZE, color="#333333")
    ax.set_yticks(range(len(found)), list(found))
    ax.invert_yaxis()
    lost = 1 - len(complete) / len(train)
    more = (
        sum(found["masked, trained on complete windows only"]) / sum(found["masked (the program below)"]) - 1
    )
    dress(ax, None, "pinball loss of windows with missing hours (hPa, less is better)", None)
    title = f"Trained on complete windows only, {lost:.0%} fewer, a model errs {more:.0%} more where hours are missing"
    picture.suptitle(title, x=0.01, ha="left", fontsize=12, color="#333333")
    picture.savefig(HERE / "time_series.png", dpi=150)


if __name__ == "__main__":
    main()
