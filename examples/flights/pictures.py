"""Three pictures; their titles say what this run has found."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from maskgrad.plot.canvas import COLORS, DASHES, INK, TICK_SIZE, dress, figure

__all__ = ["NAMES", "draw"]

NAMES = ("holes.png", "calibration.png", "outage.png")


def draw(content: dict[str, Any], out: Path) -> list[Path]:
    """Draw what is missing, what was predicted, and what a silent weather station costs."""
    found = []
    for name, drawn in zip(NAMES, (_holes, _calibration, _outage), strict=True):
        picture = drawn(content)
        picture.savefig(out / name)
        found.append(out / name)
    return found


def _holes(content: dict[str, Any]) -> Any:
    missing = sorted(content["missing"].items(), key=lambda item: item[1])
    picture = figure(8, 6)
    axes = picture.subplots()
    bars = axes.barh([name for name, _ in missing], [100 * share for _, share in missing], color=COLORS[0])
    axes.bar_label(bars, fmt="%.1f", padding=3, color=INK)
    few = sum(share < 0.05 for _, share in missing)
    column, share = missing[-1]
    title = f"{few} of {len(missing)} numbers are nearly always known;\nof {column} {share:.1%} is missing"
    dress(axes, title, "missing in the training months (%)", None)
    axes.set(xlim=(0, 110))
    return picture


def _runs(content: dict[str, Any], *, outages: bool = False) -> dict[str, list[dict[str, Any]]]:
    """By model, the runs of all seeds; without the mean of training, which knows nothing of a flight."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in content["runs"]:
        known = one["course"] is not None or one["model"] == "boosted trees"
        if known and (one["outages"] > 0) == outages:
            found.setdefault(one["model"], []).append(one)
    return found


def _calibration(content: dict[str, Any]) -> Any:
    picture = figure(8, 6)
    axes = picture.subplots()
    last = []
    for (name, runs), color, marker in zip(_runs(content).items(), COLORS, "osD^v", strict=False):
        # a tenth of which nobody arrived has no point: only tenths that all seeds have
        points = [_mean(together) for together in zip(*(one["calibration"] for one in runs), strict=False)]
        last.append(points[-1])
        axes.plot(*zip(*points, strict=True), marker=marker, color=color, label=name, markersize=5)
    axes.axline((0, 0), slope=1, color=INK, linewidth=0.8)
    low, high = (min(p for p, _ in last), max(p for p, _ in last))
    real = statistics.mean(r for _, r in last)
    if low <= real <= high:
        verb = "arrives about when the models say"
    else:
        verb = f"is {'later' if real > high else 'earlier'} than every model says"
    dress(
        axes,
        f"The latest tenth {verb}:\npredicted {low:.0f} to {high:.0f} minutes, real {real:.0f}",
        "predicted arrival delay, mean of a tenth of the flights (minutes)",
        "real arrival delay, mean (minutes)",
    )
    axes.legend(frameon=False, fontsize=TICK_SIZE)
    return picture


def _mean(points: Iterable[Iterable[float]]) -> tuple[float, float]:
    predicted, real = zip(*points, strict=True)
    return statistics.mean(predicted), statistics.mean(real)


def _outage(content: dict[str, Any]) -> Any:
    """What the silent stations cost, by model and by training; a line is the range of the seeds."""
    picture = figure(9, 5)
    axes = picture.subplots()
    plain: dict[str, float] = {}
    for trained in (False, True):
        for place, (name, runs) in enumerate(_runs(content, outages=trained).items()):
            costs = [one["December without weather"]["rmse"] - one["December"]["rmse"] for one in runs]
            height = place + (0.15 if trained else -0.15)
            label = ("trained as it was", "trained with outages")[trained] if place == 0 else None
            axes.plot([min(costs), max(costs)], [height] * 2, DASHES[0], color=COLORS[trained], linewidth=1.5)
            axes.plot(
                statistics.mean(costs),
                height,
                "oD"[trained],
                color=COLORS[trained],
                label=label,
                markersize=7,
            )
            if not trained:
                plain[name] = statistics.mean(costs)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(plain)), list(plain))
    axes.invert_yaxis()
    first, last = min(plain, key=plain.__getitem__), max(plain, key=plain.__getitem__)
    dress(
        axes,
        f"December without weather: {first} {plain[first]:+.1f} minutes,\n{last} {plain[last]:+.1f}",
        "error without weather, less the error with it (RMSE, minutes)",
        None,
    )
    axes.legend(frameon=False, fontsize=TICK_SIZE)
    return picture
