"""One architecture beside the oracle: what the doctor finds, and what is true."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import maskgrad as mg
from benchmarks.wild.architectures import build
from benchmarks.wild.batches import samples_for
from benchmarks.wild.oracle import Case, judge

__all__ = ["FINDINGS", "cases_of", "rows_of"]

#: findings of the doctor that say that padding matters
FINDINGS = ("padding-leak", "padding-length", "nan-under-mask")
_OUTPUTS = ("logits", "last_hidden_state", "prediction_outputs", "prediction_logits", "pooler_output", "pred_boxes", "encoder_last_hidden_state",
            "spectrogram")  # fmt: skip


def cases_of(name: str, class_name: str) -> Case:
    """An architecture of transformers with its samples."""
    model = build(name, class_name)
    takes = inspect.signature(model.forward).parameters

    def outputs(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        given = model(**batch, **({"use_cache": False} if "use_cache" in takes else {}), return_dict=True)
        found = {key: given[key] for key in ("loss", *_OUTPUTS) if isinstance(given.get(key), Tensor)}
        if not found:
            raise ValueError(f"nothing to make a loss of among {', '.join(given)}")
        return found

    return Case(name, model, samples_for(model), outputs, "transformers")


def rows_of(case: Case, sides: tuple[str, ...] = ("right", "left")) -> Iterator[dict[str, Any]]:
    """For each side of the padding, in evaluation and in training: a row of the table."""
    for side in sides if case.samples.padding and not case.samples.axis else sides[:1]:
        for training in (False, True):
            yield row_of(case, side, training=training)


def row_of(case: Case, side: str, *, training: bool) -> dict[str, Any]:
    """What the oracle says, and the doctor."""
    row: dict[str, Any] = {
        "package": case.package, "name": case.name, "model": type(case.model).__name__, "side": side,
        "mode": "train" if training else "eval",
    }  # fmt: skip
    start = time.perf_counter()
    verdict = judge(case, side, training=training)
    middle = time.perf_counter()
    case.model.train(training)
    torch.manual_seed(2)
    try:
        report = mg.doctor.examine(
            case.loss, case.samples.batch(side), experiments=["padding-leak", "padding-length"], blame="package"
        )
    except Exception as error:
        return row | {"doctor": None, "error": f"{type(error).__name__}: {error}"[:300], "oracle": verdict.leaks()}
    seconds = {"oracle": round(middle - start, 2), "doctor": round(time.perf_counter() - middle, 2)}
    found = [finding for finding in report.findings if finding.kind in FINDINGS]
    return row | {
        "oracle": verdict.leaks(),
        "sizes": {name: float(f"{value:.3g}") for name, value in vars(verdict).items() if value is not None},
        "doctor": [finding.kind for finding in found],
        "lines": [
            f"{re.split(r'site-packages[/]', finding.file)[-1]}:{finding.line} {finding.code} [{finding.operation}]"
            for finding in found
        ],
        "unexamined": report.unexamined,
        "notes": [f"{note.about}: {note.message}"[:200] for note in report.notes],
        "recognised": report.padding,
        "seconds": seconds,
    }


def work(item: tuple[str, str, str]) -> Iterator[dict[str, Any]]:
    """The rows of one model."""
    warnings.filterwarnings("ignore")
    _, name, class_name = item
    yield from rows_of(cases_of(name, class_name))
