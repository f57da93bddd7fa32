"""The experiments that change shapes or rows: padding-length, order, empty-row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.alignment import Aligned, cropped, first_difference, permuted
from maskgrad.doctor.experiments import Examination, nan_findings
from maskgrad.doctor.findings import Finding, Note
from maskgrad.doctor.leaks import Difference
from maskgrad.doctor.origins import has_nan
from maskgrad.doctor.remedies import remedy_for
from maskgrad.doctor.steady import Entry, Log, Steady
from maskgrad.doctor.tolerance import between
from maskgrad.doctor.trial import Outcome
from maskgrad.doctor.variants import emptied, pads_left, rows_of, selected, widened
from maskgrad.errors import ExaminationError

__all__ = [
    "base", "empty_row", "finding", "last_division", "longest_first", "order", "padding_length", "so", "splits",
    "steady",
]  # fmt: skip


def _clone(outcome: Outcome) -> Outcome:
    """What is read of a run before memory is restored."""
    loss = None if outcome.loss is None else outcome.loss.clone()
    return Outcome(loss, {name: gradient.clone() for name, gradient in outcome.gradients.items()})


def steady(case: Examination, batch: Any = None) -> tuple[Outcome, Steady]:
    """A run without dropout, and what it drew."""
    mode = Steady()
    return case.trial.run(mode, batch, after=_clone), mode


def base(case: Examination) -> tuple[Outcome, Steady]:
    """That run with the batch as it is."""
    if "steady" not in case.base:
        case.base["steady"] = steady(case)
    found: tuple[Outcome, Steady] = case.base["steady"]
    return found


def _changed(case: Examination, name: str, batch: Any, words: str) -> Difference | None:
    """Loss and gradients of a changed batch beside those of the batch; None if that cannot be said."""
    before, mode = base(case)
    try:
        after, other = steady(case, batch)
    except ExaminationError:
        raise
    except Exception as error:
        case.tried(
            name,
            words,
            f"the program itself refuses: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        )
        return None
    if mode.draws != other.draws or (
        name in ("order", "denominator") and any(shape for _, shape in mode.draws)
    ):
        place = mode.draws[0][0] if mode.draws else None
        case.note(name, "left out: the program draws random numbers of its own, and would draw others", place)
        return None
    difference = between(before, after)
    case.tried(name, words, so(difference) or "nothing changed")
    return difference


def _line(case: Examination, batch: Any, align: Aligned) -> Entry | None:
    logs = []
    for what in (None, batch):
        log = Log()
        case.trial.run(log, what)
        logs.append(log.entries)
    return first_difference(logs[0], logs[1], align)


def so(difference: Difference) -> str:
    """The difference as part of a sentence; empty if there is none."""
    return difference.words().replace("with other padding", "so")


def finding(kind: str, entry: Entry | None, words: str, difference: Difference) -> Finding:
    """What changed, at the first line at which something did."""
    where = f"{entry.operation} is the first operation that gives something else: " if entry else ""
    return Finding.at(
        entry.place if entry else None,
        kind,
        f"{where}{words}, {so(difference)}",
        remedy=remedy_for(kind, entry),
        operation=entry.operation if entry else "",
        affected=difference.numbers(),
    )


def padding_length(case: Examination) -> None:
    """One more column of padding, on the side where the batch has it."""
    left = pads_left(case.paddings)
    made = widened(case.trial.batch, case.paddings, left=left)
    if made is None:
        return
    batch, shape = made
    words = f"with one more column of padding on the {'left' if left else 'right'}"
    difference = _changed(case, "padding-length", batch, words)
    if not difference:
        return
    if "padding-leak" in case.report.kinds():
        return  # another column is other garbage too; what leaks is known already
    masks = [padding.mask for padding in case.paddings]
    entry = _line(case, batch, cropped(shape, masks, left=left))
    case.report.add([finding("padding-length", entry, words, difference)])


def order(case: Examination) -> None:
    """The rows in another order."""
    count = rows_of(case.trial.batch, case.paddings)
    if count < 2:
        return
    for rows in _orders(case, count):
        batch = selected(case.trial.batch, rows, count)
        words = f"with the samples in the order {rows.tolist()}"
        difference = _changed(case, "order", batch, words)
        if difference is None:
            return
        if not difference:
            continue
        if splits(case, count):
            if "denominator" not in case.report.kinds():
                _report_split(case, rows, batch, difference)
        elif _in_pairs(case, count):
            case.note("order", "samples that belong together are recognised by their places in the batch")
        else:
            entry = _line(case, batch, permuted(rows))
            case.report.add([finding("order", entry, words, difference)])
        return


def _orders(case: Examination, count: int) -> list[Tensor]:
    """Backwards, turned by one, and the longest sample first: parts of the batch then hold other numbers of tokens."""
    orders = [torch.arange(count).flip(0), torch.arange(count).roll(1), longest_first(case, count)]
    return [rows for rows in orders if not torch.equal(rows, torch.arange(count))]


def longest_first(case: Examination, count: int) -> Tensor:
    """The rows by how many real entries they have; as they are if no mask says so."""
    masks = [p.mask for p in case.paddings if p.mask.ndim and p.mask.shape[0] == count]
    if not masks:
        return torch.arange(count)
    return masks[0].reshape(count, -1).sum(1).cpu().argsort(descending=True, stable=True)


def _in_pairs(case: Examination, count: int) -> bool:
    """Whether nothing changes as long as neighbours, or the halves of the batch, stay together."""
    if count < 4 or count % 2:
        return False
    half = torch.arange(count // 2).flip(0)
    together = (torch.stack([2 * half, 2 * half + 1], 1).flatten(), torch.cat([half, half + count // 2]))
    for rows in together:
        after, _ = steady(case, selected(case.trial.batch, rows, count))
        if not between(base(case)[0], after):
            return True
    return False


def splits(case: Examination, count: int) -> bool:
    """Whether the step gives its model parts of the batch, one after the other."""
    rows = case.trial.rows
    return len(rows) > 1 and 1 < max(rows) < count  # the order of single samples changes no part


def _report_split(case: Examination, rows: Tensor, batch: Any, difference: Difference) -> None:
    words = (
        f"the step computes the batch in {len(case.trial.rows)} parts, and with the samples in the order "
        f"{rows.tolist()}, that is in other parts"
    )
    entry = last_division(case, batch)
    case.report.add([finding("denominator", entry, words, difference)])


def last_division(case: Examination, batch: Any = None) -> Entry | None:
    """The operation of the user's program that divides last before a backward pass."""
    log = Log()
    case.trial.run(log, batch)
    dividing = (
        "mean",
        "div",
        "div_",
        "nll_loss_forward",
        "mse_loss",
        "nll_loss2d_forward",
        "binary_cross_entropy",
    )
    scalars = [e for e in log.entries if e.outputs[0].numel() == 1 and e.operation in dividing]
    losses = [e for e in scalars if e.operation not in ("div", "div_")]
    chosen = losses or scalars
    return chosen[-1] if chosen else None


def empty_row(case: Examination) -> None:
    """One sample that is all padding."""
    count = rows_of(case.trial.batch, case.paddings)
    if count < 2 or case.base.get("nan"):
        return
    batch = emptied(case.trial.batch, case.paddings, count - 1)
    if batch is None:
        return
    words = f"sample {count - 1} is all padding"

    def nan_in(outcome: Outcome) -> bool:
        ends = [*outcome.gradients.values(), *([outcome.loss] if outcome.loss is not None else [])]
        return any(has_nan(tensor) for tensor in ends)

    try:
        found = case.trial.run(Steady(), batch, after=nan_in)
    except Exception as error:
        case.tried("empty-row", words, f"the program itself refuses: {type(error).__name__}: {error}"[:200])
        return
    case.tried("empty-row", words, "there is a NaN" if found else "no NaN")
    if not found:
        return
    findings = nan_findings(case, "numbers", 0, None, finding_kind="empty-row", batch=batch)
    if "empty-row" in case.asked:
        case.report.add(findings)
        return
    for finding in findings:
        # a program whose batches never hold such a sample is right without
        message = f"a sample that is all padding would make NaN ({finding.operation}); this batch has none"
        case.report.note(Note("empty-row", message, finding.file, finding.line))
