"""The experiments by name. Each takes the examination and adds to its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from maskgrad.doctor.batches import fields, tensor_of
from maskgrad.doctor.findings import Finding, Note
from maskgrad.doctor.garbage import KINDS
from maskgrad.doctor.leaks import Difference, compare, garble, locate
from maskgrad.doctor.origins import Origin, Origins, has_nan
from maskgrad.doctor.recognition import Padding
from maskgrad.doctor.remedies import remedy_for
from maskgrad.doctor.report import Experiment, Report
from maskgrad.doctor.trial import Outcome, Trial
from maskgrad.doctor.twins import Twins
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["Examination", "nan_findings", "nan_under_mask", "padding_leak"]


@dataclass
class Examination:
    """What the experiments share."""

    trial: Trial
    paddings: list[Padding]
    report: Report
    #: the experiments that were asked for by name
    asked: frozenset[str] = frozenset()
    #: how the batch is split into parts, if it was told
    parts: Any = None
    #: results of the program as it is
    base: dict[str, Any] = field(default_factory=dict)

    def tried(self, name: str, changed: str, result: str) -> None:
        """Write down what was done."""
        self.report.experiments.append(Experiment(name, changed, result))

    def note(self, about: str, message: str, place: Any = None) -> None:
        """Write down what is no fault."""
        self.report.note(Note.at(place, about, message))


def padding_leak(case: Examination) -> None:
    """Other garbage of the same shape, until something differs."""
    for seed, kind in enumerate(("numbers", "large")):
        mode = Twins()
        changed = garble(mode, case.trial.batch, case.paddings, kind, seed)
        if not changed:
            continue
        difference: Difference = case.trial.run(
            mode, after=partial(compare, mode, trial=case.trial, paddings=case.paddings)
        )
        for name, error, place in mode.refusals:
            case.note("padding-leak", f"{name} was not followed into the padding: {error}", place)
        words = f"{KINDS[kind]} in {', '.join(map(str, changed))}"
        nothing = "nothing else changed" + ", as far as it was followed: see the notes" * bool(mode.refusals)
        case.tried("padding-leak", words, difference.words() or nothing)
        if not difference:
            continue
        if case.base.get("nan") and any(_holds_no_numbers(case, padding) for padding in case.paddings):
            case.report.add(nan_findings(case, kind, seed, difference))
        else:
            findings, recorder = locate(case.trial, case.paddings, kind, seed, "padding-leak", difference)
            case.report.add(findings)
            _remember(case, recorder.lines)
        return


def _remember(case: Examination, lines: dict[tuple[str, int], str]) -> None:
    for (file, line), what in lines.items():
        known = case.report.trail.setdefault(file, {})
        if known.get(line) != "mixed":
            known[line] = what


def nan_under_mask(case: Examination) -> None:
    """NaN and infinity in the padding; a fault only where padding holds such values, or where it was asked for."""
    if case.base.get("nan"):
        _nan_as_it_is(case)
        return
    if "padding-leak" in case.report.kinds():
        return  # NaN takes the way that is known already
    held = [padding for padding in case.paddings if _holds_no_numbers(case, padding)]
    others = [padding for padding in case.paddings if padding not in held]
    if "nan-under-mask" in case.asked:
        held, others = case.paddings, []
    _nan_in(case, held, fault=True)
    _nan_in(case, others, fault=False)


def _nan_as_it_is(case: Examination) -> None:
    """The program gives NaN before anything is changed."""
    empty = any(
        padding.mask.ndim > 1 and not bool(padding.mask.flatten(1).any(1).all()) for padding in case.paddings
    )
    kind = "empty-row" if empty else "nan-under-mask"
    if not {"nan-under-mask", "empty-row"} & set(case.report.kinds()):
        case.report.add(nan_findings(case, "numbers", 0, None, finding_kind=kind))
    case.tried("nan-under-mask", "nothing", "the program as it is gives NaN")


def _nan_in(case: Examination, paddings: list[Padding], *, fault: bool) -> None:
    for kind in ("nan", "inf"):
        mode = Twins()
        changed = garble(mode, case.trial.batch, paddings, kind)
        if not changed:
            continue
        difference: Difference = case.trial.run(
            mode, after=partial(compare, mode, trial=case.trial, paddings=case.paddings)
        )
        words = f"{KINDS[kind]} in {', '.join(map(str, changed))}"
        case.tried("nan-under-mask", words, difference.words() or "nothing else changed")
        if not difference:
            continue
        findings, recorder = locate(case.trial, paddings, kind, 0, "nan-under-mask", difference)
        if fault:
            case.report.add(findings)
            _remember(case, recorder.lines)
        else:
            first = findings[0]
            message = (
                f"a NaN in the padding of {', '.join(map(str, changed))} would reach the result "
                f"({first.operation or 'some operation'}); the padding of this batch holds none"
            )
            case.report.note(Note("nan-under-mask", message, first.file, first.line))
        return


def _holds_no_numbers(case: Examination, padding: Padding) -> bool:
    """Whether padding has NaN or infinity in this batch, or is of a MaskedTensor, under which anything may lie."""
    held = fields(case.trial.batch)[padding.key]
    if isinstance(held, MaskedTensor):
        return True
    tensor = tensor_of(held)
    return tensor.is_floating_point() and not bool(tensor[~padding.entries(tensor)].isfinite().all())


def nan_findings(
    case: Examination,
    kind: str,
    seed: int,
    difference: Difference | None,
    *,
    finding_kind: str = "nan-under-mask",
    batch: Any = None,
) -> list[Finding]:
    """The operations from which the NaN in loss and gradients come."""
    trace = Origins(has_nan)

    def read(outcome: Outcome) -> tuple[bool, list[Origin], list[str]]:
        names = [name for name, gradient in outcome.gradients.items() if has_nan(gradient)]
        ends: list[Tensor] = [outcome.gradients[name] for name in names]
        lost = outcome.loss is not None and has_nan(outcome.loss)
        return lost, trace.origins([outcome.loss] if lost and outcome.loss is not None else ends), names

    lost, origins, names = case.trial.run(trace, batch, after=read)
    if not lost and not names:
        return []
    if not any(origin.operation for origin in origins) and difference:
        # the batch's own NaN went straight into the loss: the line is that at which real entries take it up
        findings, recorder = locate(case.trial, case.paddings, kind, seed, finding_kind, difference)
        _remember(case, recorder.lines)
        return findings
    what = (
        "the loss is NaN"
        if lost
        else f"the loss is a number, but the gradient of {names[0]}"
        + (f" and {len(names) - 1} more hold NaN" if len(names) > 1 else " holds NaN")
    )
    made = [origin for origin in origins if origin.operation] or origins
    when = {"empty-row": "with a sample that is all padding "}.get(finding_kind, "")
    return [
        Finding.at(
            origin.place,
            finding_kind,
            f"{when}{what}: {origin.operation or 'the batch'} makes NaN "
            + ("in the backward pass of this line" if origin.backward else "here"),
            remedy=remedy_for(finding_kind),
            operation=origin.operation,
            affected={"loss": lost, "gradients": names},
        )
        for origin in dict.fromkeys(made)
    ][:3]
