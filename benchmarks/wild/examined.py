"""One model beside the oracle: what the doctor finds, and what is true."""

from __future__ import annotations

import gc
import inspect
import linecache
import re
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import maskgrad as mg
from benchmarks.wild import packages
from benchmarks.wild.architectures import architectures, build
from benchmarks.wild.batches import samples_for
from benchmarks.wild.oracle import Case, judge

__all__ = ["case_of", "models", "preload", "row_of", "rows_of", "sides_of"]

#: findings of the doctor that say that padding matters
FINDINGS = ("padding-leak", "padding-length", "nan-under-mask")
EXPERIMENTS = ("padding-leak", "padding-length")
_OUTPUTS = (
    "loss", "logits", "last_hidden_state", "prediction_outputs", "prediction_logits", "pooler_output", "pred_boxes",
    "encoder_last_hidden_state", "spectrogram",
)  # fmt: skip
TRANSFORMERS = "transformers"
#: package, name, class
Item = tuple[str, str, str]


def models() -> list[Item]:
    """All that is examined: the first head of each architecture of transformers, other packages, second heads."""
    known = [(name, list(heads.values())) for name, heads in architectures().items()]
    firsts = [(TRANSFORMERS, name, heads[0]) for name, heads in known]
    others = [(model.package, name, model.path) for name, model in packages.MODELS.items()]
    seconds = [(TRANSFORMERS, name, head) for name, heads in known for head in heads[1:]]
    return [*others, *firsts, *seconds]


def case_of(item: Item) -> Case:
    """A model with its samples."""
    package, name, class_name = item
    if package != TRANSFORMERS:
        return packages.case_of(name)
    model = build(name, class_name)
    takes = inspect.signature(model.forward).parameters
    options = {"use_cache": False} if "use_cache" in takes else {}

    def outputs(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        given = model(**batch, **options, return_dict=True)
        found = {key: given[key] for key in _OUTPUTS if isinstance(given.get(key), Tensor)}
        if not found:
            raise ValueError(f"nothing to make a loss of among {', '.join(given)}")
        return found

    return Case(name, model, samples_for(model), outputs, package)


def sides_of(case: Case) -> tuple[str, ...]:
    """Where its samples can be padded: images only on the right, series with holes not at all."""
    return ("right", "left") if case.samples.padding and not case.samples.axis else ("right",)


def rows_of(item: Item) -> Iterator[dict[str, Any]]:
    """For each side of the padding, in evaluation and in training, what the oracle says and what the doctor."""
    warnings.filterwarnings("ignore")
    case = case_of(item)
    for side in sides_of(case):
        for training in (False, True):
            yield row_of(case, side, training=training) | {"model": item[2]}


def row_of(case: Case, side: str, *, training: bool) -> dict[str, Any]:
    """One row of the results."""
    start = time.perf_counter()
    verdict = judge(case, side, training=training)
    middle = time.perf_counter()
    report = examined(case, side, training=training)
    seconds = [round(middle - start, 2), round(time.perf_counter() - middle, 2)]
    found = [finding for finding in report.findings if finding.kind in FINDINGS]
    sizes = {name: float(f"{value:.2g}") for name, value in vars(verdict).items() if isinstance(value, float)}
    row = {
        "package": case.package,
        "name": case.name,
        "side": side,
        "mode": "train" if training else "eval",
        "oracle": verdict.leaks(),
        "sizes": sizes,
        "doctor": [finding.kind for finding in found],
        "lines": [_line(finding) for finding in found],
        "left_out": [note.message[:120] for note in report.notes if note.about in EXPERIMENTS],
        "unexamined": report.unexamined,
        "float64": verdict.double,
        "seconds": seconds,
    }
    return {
        key: value for key, value in row.items() if value not in ([], "", True) or key in ("oracle", "doctor")
    }


def examined(case: Case, side: str, *, training: bool) -> mg.doctor.Report:
    """What the doctor says of a case, without being told what is padding."""
    case.model.train(training)
    torch.manual_seed(2)
    return mg.doctor.examine(case.loss, case.samples.batch(side), experiments=EXPERIMENTS)


def _line(finding: mg.doctor.Finding) -> str:
    """The line of the package, if the program's line calls one."""
    path, line = finding.package_file or finding.file, finding.package_line or finding.line
    short = re.split(r"site-packages[\\/]", path)[-1]
    return f"{short}:{line} `{linecache.getline(path, line).strip()}`"


def preload() -> None:
    """Import what nearly all models import, once for all processes; no thread may be running when they fork."""
    torch.set_num_threads(1)
    for name, head in (
        ("llama", "LlamaForCausalLM"), ("bart", "BartForConditionalGeneration"), ("wav2vec2", "Wav2Vec2ForCTC"),
    ):  # fmt: skip
        row_of(case_of((TRANSFORMERS, name, head)), "right", training=False)
    gc.freeze()  # no model is among what is there now: the doctor need not look through it in each process
