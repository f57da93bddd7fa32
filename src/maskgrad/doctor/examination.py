"""The examination of a step: its experiments one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from maskgrad.doctor.leaks import compare, garble, locate
from maskgrad.doctor.recognition import Padding, recognised
from maskgrad.doctor.report import Experiment, Report
from maskgrad.doctor.trial import Trial
from maskgrad.doctor.twins import Guarded, Twins

__all__ = ["examine"]


def examine(
    step: Callable[[Any], Any],
    batch: Any,
    *,
    padding: Mapping[Any, Any] | None = None,
    model: nn.Module | None = None,
    experiments: Iterable[str] | None = None,
    quick: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    parts: Any = None,
    required: bool = False,
) -> Report:
    """Look for places where padding reaches what counts."""
    del experiments, quick, progress, parts, required
    trial = Trial(step, batch, model)
    trial.run(Guarded())
    paddings = recognised(batch, padding)
    report = Report(padding={str(found.key): found.source for found in paddings})
    _padding_leak(trial, paddings, report)
    return report


def _padding_leak(trial: Trial, paddings: list[Padding], report: Report) -> None:
    for seed, kind in enumerate(("numbers", "large")):
        mode = Twins()
        garble(mode, trial.batch, paddings, kind, seed)
        difference = trial.run(mode, after=lambda outcome, mode=mode: compare(mode, outcome, trial, paddings))
        if difference:
            findings, _ = locate(trial, paddings, kind, seed, "padding-leak", difference)
            report.add(findings)
        report.experiments.append(Experiment("padding-leak", kind, difference.words() or "nothing changed"))
        if difference:
            return
