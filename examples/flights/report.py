"""What came out: a table, numbers for programs, and two pictures."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from torch import Tensor

import maskgrad as mg

from .data import NUMBERS, Flights, Split
from .training import Errors, History

__all__ = ["Report", "calibration"]

BINS = 10


@dataclass
class Report:
    """Errors on the test months by model, and how the networks came there."""

    errors: dict[str, Errors] = field(default_factory=dict)
    histories: dict[str, History] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    calibrated: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def show(self, console: Console) -> None:
        """The errors as a table; the best of each column is bold."""
        table = Table("model", "RMSE (minutes)", "MAE (minutes)", "epoch kept", "seconds")
        for name, found in self.errors.items():
            cells = [
                f"[bold]{value:.2f}[/]" if value == min(column) else f"{value:.2f}"
                for value, column in (
                    (found.rmse, [e.rmse for e in self.errors.values()]),
                    (found.mae, [e.mae for e in self.errors.values()]),
                )
            ]
            kept = str(self.histories[name].best_epoch) if name in self.histories else ""
            table.add_row(name, *cells, kept, f"{self.seconds[name]:.0f}" if name in self.seconds else "")
        console.print(table)

    def write(self, out: Path, parts: Split) -> list[Path]:
        """``metrics.json`` and the pictures."""
        metrics = out / "metrics.json"
        content = {
            "test": {name: asdict(found) for name, found in self.errors.items()},
            "epochs": {name: asdict(history) for name, history in self.histories.items()},
            "calibration": self.calibrated,
            "seconds": self.seconds,
            "flights": {name: len(part) for name, part in vars(parts).items() if isinstance(part, Flights)},
            "versions": {"torch": str(torch.__version__), "maskgrad": mg.__version__},
        }
        metrics.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return [
            metrics,
            _draw_holes(parts, out / "holes.png"),
            self._draw_calibration(out / "calibration.png"),
        ]

    def _draw_calibration(self, path: Path) -> Path:
        figure = Figure(figsize=(6, 5), dpi=150, layout="constrained")
        axes = figure.subplots()
        for marker, (name, points) in zip("osD^v", self.calibrated.items(), strict=False):
            axes.plot(*zip(*points, strict=True), marker=marker, label=name)
        axes.axline((0, 0), slope=1, color="#333333", linewidth=0.8)
        axes.set(
            title="Tenths of the test flights: predicted and real delay",
            xlabel="mean of the predicted arrival delays (minutes)",
            ylabel="mean of the real ones (minutes)",
        )
        axes.legend(frameon=False)
        figure.savefig(path)
        return path


def calibration(predicted: Tensor, flights: Flights) -> list[tuple[float, float]]:
    """Of each tenth of the flights, by prediction: mean predicted and mean real delay of those that arrived."""
    points = []
    for index in predicted.argsort().tensor_split(BINS):
        real = flights.delays[index, 1]
        if real.num_specified() > 0:
            points.append((predicted[index][real.mask].mean().item(), real.mean().item()))
    return points


def _draw_holes(parts: Split, path: Path) -> Path:
    missing = 1 - parts.training.numbers.mask.float().mean(0)
    order = missing.argsort()
    figure = Figure(figsize=(7, 5), dpi=150, layout="constrained")
    axes = figure.subplots()
    bars = axes.barh([NUMBERS[i] for i in order.tolist()], (100 * missing[order]).tolist(), color="#0072B2")
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.set(
        title="What is not known of a flight (% of the training months)", xlabel="missing (%)", xlim=(0, 110)
    )
    figure.savefig(path)
    return path
