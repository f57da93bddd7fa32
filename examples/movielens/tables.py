"""The report as tables on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from .memory import peak_memory
from .report import Report

__all__ = ["print_tables"]


def print_tables(report: Report, console: Console) -> None:
    """Print what ``report`` has: errors of the predictions, times of a step, memory."""
    if report.scores and report.split:
        console.print(f"\nErrors on {len(report.split.held_out):,} held-out ratings, in stars:")
        console.print(_errors(report))
    if report.median_ms("whole"):
        console.print("\nTime per step of the factorization, median (ms), same model, same batches in turns:")
        console.print(_step_times(report))
    for kind, size in peak_memory(report.settings.device).items():
        console.print(f"Peak memory of the {kind}: {size / 2**20:,.0f} MiB")


def _errors(report: Report) -> Table:
    table = Table()
    table.add_column("model")
    for name in ("RMSE", "MAE", "epoch kept"):
        table.add_column(name, justify="right")
    best = report.best_model()
    for name, scores in report.scores.items():
        epoch = str(report.histories[name].best_epoch) if name in report.histories else ""
        table.add_row(
            name, f"{scores.rmse:.4f}", f"{scores.mae:.4f}", epoch, style="bold" if name == best else None
        )
    return table


def _step_times(report: Report) -> Table:
    table = Table()
    table.add_column("optimizer")
    for name in ("whole step", "optimizer.step()"):
        table.add_column(name, justify="right")
    whole, optimizer = report.median_ms("whole"), report.median_ms("optimizer")
    for name in whole:
        table.add_row(name, f"{whole[name]:.2f}", f"{optimizer[name]:.2f}")
    return table
