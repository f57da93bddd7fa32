"""The pictures of the report: the matrix, what was learnt, and how long a step took."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from maskgrad import plot
from maskgrad.plot.canvas import INK, TICK_SIZE, figure

from .bars import bars
from .report import THREADS, Report
from .training import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["NAMES", "draw"]

NAMES = ("pattern.png", "learning_curves.png", "step_times.png")


def draw(report: Report, out: Path) -> Iterator[Path]:
    """Write the pictures for which ``report`` has numbers into ``out``, and name each when it is there."""
    pattern, learning_curves, step_times = (out / name for name in NAMES)
    if report.ratings is not None:
        yield _draw_pattern(report, pattern)
    if any(history.training for history in report.histories.values()):
        yield _draw_learning_curves(report, learning_curves)
    if report.median_ms("whole"):
        yield _draw_step_times(report, step_times)


def _draw_pattern(report: Report, path: Path) -> Path:
    ratings = report.ratings
    if ratings is None:
        raise ValueError("there are no ratings to draw")
    picture = figure(9, 5.2)
    plot.pattern(
        ratings.matrix(ratings.stars).mask.T,
        picture.subplots(),
        bins=(96, 240),
        sort=True,
        title=f"{len(ratings):,} ratings: {ratings.missing:.1%} of the matrix is missing",
        xlabel="movies, most rated first",
        ylabel="users, most active first",
    )
    picture.savefig(path)
    return path


def _draw_learning_curves(report: Report, path: Path) -> Path:
    histories = {name: history for name, history in report.histories.items() if history.training}
    picture = figure(5.2 * len(histories), 4.4)
    panels = picture.subplots(1, len(histories), sharey=True, squeeze=False)[0]
    baseline = report.scores.get("user and movie biases")
    for panel, (name, history) in zip(panels, histories.items(), strict=True):
        plot.curves(
            {
                "training": history.training,
                "validation": history.validation,
                "held out": history.held_out,
            },
            panel,
            legend=panel is panels[0],
            title=name.capitalize(),
            ylabel="RMSE (stars)" if panel is panels[0] else None,
            level=("held out, biases only", baseline.rmse) if baseline else None,
        )
        _mark_kept(panel, history)
    picture.savefig(path)
    return path


def _mark_kept(panel: Axes, history: History) -> None:
    """A dot where the parameters were taken from, with what they do on the held-out ratings."""
    if history.kept is None:
        return
    at = (history.best_epoch, history.kept.rmse)
    panel.plot(*at, "o", markersize=7, color=INK)
    panel.annotate(
        f"epoch {at[0]} kept: {at[1]:.3f} held out",
        at,
        xytext=(0, -14),
        textcoords="offset points",
        # towards the middle, so that it stays inside
        ha="left" if at[0] <= len(history.held_out) / 2 else "right",
        va="top",
        fontsize=TICK_SIZE,
        color=INK,
    )


def _draw_step_times(report: Report, path: Path) -> Path:
    picture = figure(9, 3.4)
    bars(
        {"whole training step": report.median_ms("whole"), "optimizer.step()": report.median_ms("optimizer")},
        picture.subplots(),
        title="Matrix factorization with sparse gradients: time per step",
        xlabel=f"median of {len(report.times.whole['mg.optim.Adagrad'])} steps (ms) on "
        f"{report.settings.device} ({THREADS} thread), same model, same batches in turns",
    )
    picture.savefig(path)
    return path
