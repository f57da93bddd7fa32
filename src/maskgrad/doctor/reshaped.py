"""The experiments that change shapes or rows: padding-length, order, empty-row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.aligned import Aligned, first_difference, log
from maskgrad.doctor.batches import Key, fields
from maskgrad.doctor.case import Examination
from maskgrad.doctor.comparison import Difference, compare, not_close
from maskgrad.doctor.findings import Finding, Note
from maskgrad.doctor.frames import Place
from maskgrad.doctor.leaks import nan_findings
from maskgrad.doctor.modes import LoggedOperation, WithoutDropout
from maskgrad.doctor.padding import Padding
from maskgrad.doctor.precision import DOUBTFUL, LITTLE, SHRINKS, batch_in_double
from maskgrad.doctor.runner import Outcome
from maskgrad.doctor.validity import ValidityMasks
from maskgrad.doctor.variants import by_columns, emptied, narrowed, pads_left, selected, widened
from maskgrad.errors import ExaminationError

__all__ = [
    "DRAWS", "changed", "empty_row", "finding", "last_division", "longest_first", "order", "padding_length",
    "run_as_it_is", "run_without_dropout", "splits",
]  # fmt: skip

DRAWS = "skipped: the program draws its own random numbers, which would differ"
#: where a program drew numbers itself, and of which shape
Draws = list[tuple[Place | None, tuple[int, ...]]]


def _cropped(
    columns: int, more: int, masks: list[Tensor], *, left: bool, time_first: bool = False
) -> Aligned:
    """Outputs of a run with more columns: cut these off, and compare what the mask has."""
    validities = ValidityMasks([mask.t() if time_first and mask.ndim == 2 else mask for mask in masks])

    def align(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
        if a.ndim != b.ndim:
            return None
        for axis, (before, after) in enumerate(zip(a.shape, b.shape, strict=True)):
            if before == after:
                continue
            if before % columns or after != before // columns * (columns + more):
                return None
            sizes = (before // columns, columns + more)
            split = b.unflatten(axis, sizes[::-1] if time_first else sizes)
            b = split.narrow(axis + (not time_first), more if left else 0, columns).flatten(axis, axis + 1)
        real = validities.by_shape(a)
        return (a, b) if real is None else (a[real], b[real])

    return align


def _permuted(order: Tensor) -> Aligned:
    """Outputs of a run with rows in another order: put them back, and choose the axis that fits best."""
    rows = len(order)

    def align(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
        if a.shape != b.shape:
            return None
        moved = order.to(a.device)
        axes = [axis for axis, size in enumerate(a.shape) if size == rows]
        options = [a, *(a.index_select(axis, moved) for axis in axes)]
        if len(axes) > 1:
            options.append(a.index_select(axes[0], moved).index_select(axes[1], moved))
        if a.ndim and a.shape[0] > rows and a.shape[0] % rows == 0:
            for split in ((rows, -1), (-1, rows)):
                whole = a.unflatten(0, split)
                options.append(whole.index_select(split.index(rows), moved).flatten(0, 1))
        return next(
            (option for option in options if not not_close(option, b)), options[min(1, len(options) - 1)]
        ), b

    return align


def run_without_dropout(case: Examination, batch: Any = None, *, wider: int = 0) -> tuple[Outcome, Draws]:
    """A run without dropout, and what it drew; what the program pads is that much wider."""
    mode = WithoutDropout(wider=wider)
    outcome, draws, pads, frames = case.runner.run(
        mode, batch, after=lambda run: (run.cloned(), mode.draws, mode.pads, mode.frames)
    )
    if batch is None and not wider:
        case.base["pads"], case.base["frames"] = pads, frames
    return outcome, draws


def run_as_it_is(case: Examination) -> tuple[Outcome, Draws]:
    """That run with the batch as it is."""
    if "without dropout" not in case.base:
        case.base["without dropout"] = run_without_dropout(case)
    found: tuple[Outcome, Draws] = case.base["without dropout"]
    return found


def changed(
    case: Examination, name: str, batch: Any, words: str, *, beside: Any = None, wider: int = 0
) -> Difference | None:
    """Loss and gradients of a changed batch beside those of the batch, or another; None if that cannot be said."""
    try:
        before, draws = run_as_it_is(case) if beside is None else run_without_dropout(case, beside)
        after, others = run_without_dropout(case, batch, wider=wider)
    except ExaminationError:
        raise
    except Exception as error:
        case.note(name, f"{words}: {_raised(error)}")
        return None
    if draws != others or (name == "order" and any(shape for _, shape in draws)):
        place = draws[0][0] if draws else None
        case.note(name, DRAWS, place)
        return None
    difference = compare(before, after, count=case.count)
    doubtful = (LITTLE if not difference else 0.0) < difference.relative < DOUBTFUL
    wide = _in_double(case, beside, batch, wider) if doubtful else None
    if difference and wide is not None and wide.relative <= SHRINKS * difference.relative:
        case.note(name, f"{words}, the difference is rounding: it nearly vanishes in float64")
        difference = Difference()
    elif not difference and wide is not None and wide.relative > LITTLE:
        difference = wide
    case.tried(name, words, difference.words("after") or "nothing changed", _altered(case, batch))
    return difference


def _altered(case: Examination, batch: Any) -> list[Key]:
    """What is another tensor in a changed batch."""
    before = fields(case.runner.batch)
    return [key for key, held in fields(batch).items() if held is not before.get(key)]


def _in_double(case: Examination, before: Any, after: Any, wider: int) -> Difference | None:
    """What differs between both runs in float64; None where a program cannot run in that."""
    before, after = (batch_in_double(case.runner.batch if held is None else held) for held in (before, after))
    try:
        with case.runner.in_double():
            first, _ = run_without_dropout(case, before)
            second, _ = run_without_dropout(case, after, wider=wider)
    except Exception:
        return None
    return compare(first, second, count=case.count)


def _raised(error: Exception) -> str:
    return f"the program fails: {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def finding(kind: str, entry: LoggedOperation | None, words: str, difference: Difference) -> Finding:
    """What changed, at the first line at which something did."""
    where = f"{entry.operation} is the first operation with a different result: " if entry else ""
    message = f"{where}{words}, {difference.words('after')}"
    return Finding.at(entry, kind, message, affected=difference.numbers())


def padding_length(case: Examination) -> None:
    """One more column of padding on the side where the batch has it, or as many as add a frame; a sample without."""
    for paddings in by_columns(case.paddings):
        wrong = _is_wider_wrong(case, paddings)
        if wrong is None and paddings[0].source == "NaN":
            continue  # numbers that are missing are no positions
        if wrong or _is_narrower_wrong(case, paddings, only_at_ends=wrong is None):
            return
    _is_wider_inside_wrong(case)


def _is_wider_wrong(case: Examination, paddings: list[Padding]) -> bool | None:
    """Whether more columns of the first of some paddings change something; the line is added to the report.

    None if that cannot be said.
    """
    left, count = pads_left(paddings), 1
    while True:
        made = widened(case.runner.batch, paddings, left=left, count=count)
        if made is None:
            return None
        batch, shape = made
        columns = "one more column" if count == 1 else f"{count} more columns"
        words = f"with {columns} of padding on the {'left' if left else 'right'}"
        difference = changed(case, "padding-length", batch, words)
        if difference is None:
            return None
        if difference:
            break
        if 2 * count > shape[1] or (count == 1 and not _has_frames(case, shape[1])):
            return False
        count *= 2  # what takes several positions for a frame has no more frames yet
    if "padding-leak" in case.report.kinds():
        return True  # another column is other garbage too; what leaks is known already
    masks = [padding.mask for padding in case.paddings]
    align = _cropped(shape[1], count, masks, left=left, time_first=bool(case.runner.presented.turned))
    case.report.add(
        [finding("padding-length", first_difference(log(case), log(case, batch), align), words, difference)]
    )
    return True


def _is_wider_inside_wrong(case: Examination) -> None:
    """Whether one more column changes something where the program itself pads packed, nested or listed sequences."""
    try:
        run_as_it_is(case)
    except Exception as error:
        case.note("padding-length", f"without dropout {_raised(error)}")
        return
    for lengths in case.base["pads"][:1]:
        words = "with one more column where the program itself pads to the longest sequence"
        difference = changed(case, "padding-length", None, words, wider=1)
        if difference and "padding-leak" not in case.report.kinds():
            columns = max(lengths)
            align = _cropped(columns, 1, [torch.arange(columns) < torch.tensor(lengths)[:, None]], left=False)
            entry = first_difference(log(case), log(case, wider=1), align)
            case.report.add([finding("padding-length", entry, words, difference)])


def _is_narrower_wrong(case: Examination, paddings: list[Padding], *, only_at_ends: bool) -> bool:
    """Whether a sample gives something else without padding: a program may ask if there is any, or drop a frame.

    Where it takes no other column, as with learned positions, this is all that can be asked, if padding stands at the
    ends of rows; else the columns may be no positions.
    """
    left = pads_left(paddings)
    made = narrowed(case.runner.batch, paddings, case.count, left=left, only_at_ends=only_at_ends)
    if made is None:
        return False
    words = f"with a sample of {made.columns} positions alone, and without its padding"
    difference = changed(case, "padding-length", made.narrow, words, beside=made.wide)
    if not difference:
        return False
    if "padding-leak" not in case.report.kinds():
        turned = bool(case.runner.presented.turned)
        align = _cropped(made.columns, made.cut, [made.mask], left=left, time_first=turned)
        entry = first_difference(log(case, made.narrow), log(case, made.wide), align)
        case.report.add([finding("padding-length", entry, words, difference)])
    return True


def _has_frames(case: Examination, columns: int) -> bool:
    """Whether a convolution or a pooling of the program has fewer results than the batch has positions.

    Or a choice of the largest: among equals it is another one for some numbers of columns, and not for all.
    """
    run_as_it_is(case)
    return any(1 < size <= columns // 2 for size in case.base["frames"])


def order(case: Examination) -> None:
    """The rows in another order."""
    if case.count < 2:
        return
    as_it_is = torch.arange(case.count)
    # backwards, turned by one, and the longest sample first: parts of the batch then hold other numbers of tokens
    for rows in (as_it_is.flip(0), as_it_is.roll(1), longest_first(case)):
        if torch.equal(rows, as_it_is):
            continue
        batch = selected(case.runner.batch, rows, case.count)
        words = f"with the samples in the order {rows.tolist()}"
        difference = changed(case, "order", batch, words)
        if difference is None:
            return
        if not difference:
            continue
        if splits(case):
            if "denominator" not in case.report.kinds():
                parts = len(case.runner.rows)
                words = f"the step splits the batch into {parts} parts, and {words}, which changes the parts"
                case.report.add([finding("denominator", last_division(case, batch), words, difference)])
        elif _in_pairs(case):
            case.note("order", "the step pairs samples by their positions in the batch")
        else:
            entry = first_difference(log(case), log(case, batch), _permuted(rows))
            case.report.add([finding("order", entry, words, difference)])
        return


def longest_first(case: Examination) -> Tensor:
    """The rows by how many real entries they have; as they are if no mask says so."""
    masks = [p.mask for p in case.paddings if p.mask.ndim and p.mask.shape[0] == case.count]
    if not masks:
        return torch.arange(case.count)
    return masks[0].reshape(case.count, -1).sum(1).cpu().argsort(descending=True, stable=True)


def _in_pairs(case: Examination) -> bool:
    """Whether nothing changes as long as neighbours, or the halves of the batch, stay together."""
    count = case.count
    if count < 4 or count % 2:
        return False
    half = torch.arange(count // 2).flip(0)
    together = (torch.stack([2 * half, 2 * half + 1], 1).flatten(), torch.cat([half, half + count // 2]))
    for rows in together:
        after, _ = run_without_dropout(case, selected(case.runner.batch, rows, count))
        if not compare(run_as_it_is(case)[0], after, count=count):
            return True
    return False


def splits(case: Examination) -> bool:
    """Whether the step gives its model parts of the batch, one after the other."""
    rows = case.runner.rows
    return len(rows) > 1 and 1 < max(rows) < case.count  # the order of single samples changes no part


def last_division(case: Examination, batch: Any = None) -> LoggedOperation | None:
    """The operation of the user's program that divides last before a backward pass."""
    losses = ("mean", "nll_loss_forward", "nll_loss2d_forward", "mse_loss", "binary_cross_entropy")
    scalars = [entry for entry in log(case, batch) if entry.outputs[0].numel() == 1]
    means = [entry for entry in scalars if entry.operation in losses]
    chosen = means or [entry for entry in scalars if entry.operation in ("div", "div_")]
    return chosen[-1] if chosen else None


def empty_row(case: Examination) -> None:
    """One sample that is all padding."""
    row = case.count - 1
    if row < 1 or case.gives_nan:
        return
    batch = emptied(case.runner.batch, case.paddings, row)
    if batch is None:
        return
    words = f"sample {row} is all padding"
    try:
        found = case.runner.run(WithoutDropout(), batch, after=Outcome.has_nan)
    except Exception as error:
        case.note("empty-row", f"{words}: {_raised(error)}")
        return
    case.tried("empty-row", words, "there is a NaN" if found else "no NaN", _altered(case, batch))
    if not found:
        return
    findings = nan_findings(case, "empty-row", batch)
    if "empty-row" in case.asked:
        case.report.add(findings)
        return
    for finding in findings:
        # a program whose batches never hold such a sample is right without
        message = f"a sample that is all padding would make NaN ({finding.operation}); this batch has none"
        case.report.note(Note("empty-row", message, finding.file, finding.line))
