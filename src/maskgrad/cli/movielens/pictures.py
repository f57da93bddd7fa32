"""The pictures of the report: the matrix, what was learnt, and how long a step took."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from maskgrad import plot
from maskgrad.cli.movielens.report import Report
from maskgrad.plot.canvas import figure

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
            title=name.capitalize(),
            ylabel="RMSE (stars)" if panel is panels[0] else None,
            level=("held out, biases only", baseline.rmse) if baseline else None,
        )
    picture.savefig(path)
    return path


def _draw_step_times(report: Report, path: Path) -> Path:
    picture = figure(9, 3.4)
    plot.bars(
        {"whole training step": report.median_ms("whole"), "optimizer.step()": report.median_ms("optimizer")},
        picture.subplots(),
        title="Matrix factorization with sparse gradients: time per step",
        xlabel=f"median time (ms) on {report.settings.device}, same model and batches in turns",
    )
    picture.savefig(path)
    return path
