"""The experiment that computes a sample alone and among others, and compares every bit."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from maskgrad.doctor.aligned import first_difference, log
from maskgrad.doctor.case import Examination
from maskgrad.doctor.findings import Finding
from maskgrad.doctor.variants import selected

__all__ = ["batch_bits"]


def batch_bits(case: Examination) -> None:
    """The first sample alone, and in batches of other sizes: where the bits part, and how far."""
    count = case.count
    if count < 2:
        return
    alone = log(case, selected(case.runner.batch, torch.tensor([0]), count))
    for rows in sorted({2, count // 2, count} - {0, 1}):
        words = f"the first sample among {rows}"
        among = log(case, selected(case.runner.batch, torch.arange(rows), count))
        entry = first_difference(alone, among, functools.partial(_first, rows=rows), exact=True)
        case.tried(
            "batch-bits", words, "the same bits" if entry is None else f"differs by {entry.relative:.1e}"
        )
        if entry is not None:
            message = (
                f"{entry.operation} is the first operation that gives bitwise different results for the first sample "
                f"among {rows} samples and alone: relative difference {entry.relative:.1e}"
            )
            case.report.add([Finding.at(entry, "batch-bits", message, affected={"relative": entry.relative})])
            return


def _first(alone: Tensor, among: Tensor, rows: int) -> tuple[Tensor, Tensor] | None:
    """What belongs to the first sample, of an output for it alone and of one for several; None: not to be compared."""
    if alone.ndim != among.ndim or alone.ndim == 0:
        return None
    axes = [
        axis for axis, sizes in enumerate(zip(alone.shape, among.shape, strict=True)) if sizes[0] != sizes[1]
    ]
    if len(axes) != 1 or among.shape[axes[0]] != alone.shape[axes[0]] * rows:
        return None
    if axes[0] == 0 or alone.shape[axes[0]] == 1:
        return alone, among.narrow(axes[0], 0, alone.shape[axes[0]])
    return None
