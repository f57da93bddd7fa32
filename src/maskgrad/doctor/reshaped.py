"""The experiments that change shapes or rows: padding-length, order."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.doctor.batches import Key, fields
from maskgrad.doctor.case import IN_DOUBLE, Difference, Examination, compare, not_close
from maskgrad.doctor.findings import Finding
from maskgrad.doctor.modes import LoggedOperation, OperationLog, WithoutDropout
from maskgrad.doctor.operations import same
from maskgrad.doctor.padding import Padding
from maskgrad.doctor.runner import Outcome
from maskgrad.doctor.validity import ValidityMasks
from maskgrad.doctor.variants import by_columns, narrowed, pads_left, selected, widened
from maskgrad.errors import ExaminationError

__all__ = [
    "Aligned", "Change", "batch_bits", "check_repeats", "denominator", "first_difference", "first_wrong",
    "log", "order", "padding_length", "raised", "where_real",
]  # fmt: skip

#: of two outputs: what may be compared, None if nothing can be
Log = list[LoggedOperation]
Aligned = Callable[[Tensor, Tensor], "tuple[Tensor, Tensor] | None"]


def log(case: Examination, batch: Any = None, *, wider: int = 0) -> Log:
    """The operations of a run."""
    made = OperationLog(wider=wider)
    entries: Log = case.runner.run(made, batch, after=lambda _: made.entries)
    case.base["chooses"] = made.functions.chooses
    return entries


def first_difference(a: Log, b: Log, align: Aligned, differ: Any = not_close) -> LoggedOperation | None:
    """The first operation whose outputs differ where they can be compared, by default by more than rounding.

    Consecutive operations of one line are a group; groups are matched as lines of two texts are. A loop may run once
    more: then only the common end of its operations is compared.
    """
    groups = [
        [(place, list(group)) for place, group in itertools.groupby(entries, key=lambda entry: entry.place)]
        for entries in (a, b)
    ]
    keys = [[key for key, _ in group] for group in groups]
    matcher = difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    for start, other, size in matcher.get_matching_blocks():
        for place in range(size):
            for entry, beside in _pairs(groups[0][start + place][1], groups[1][other + place][1]):
                for outputs in zip(entry.outputs, beside.outputs, strict=False):
                    aligned = align(*outputs)
                    if aligned is not None and differ(*aligned):
                        return entry
    return None


def _pairs(first: Log, second: Log) -> list[tuple[LoggedOperation, LoggedOperation]]:
    alike = [entry.operation for entry in first] == [entry.operation for entry in second]
    pairs = list(zip(first[::-1], second[::-1], strict=False))[::-1]
    return [(a, b) for a, b in pairs if alike or (a.operation == b.operation and a.outputs[0].ndim > 1)]


def where_real(masks: Sequence[Tensor] = (), kept: Callable[..., Tensor | None] = lambda *_: None) -> Aligned:
    """Outputs where the masks are True; of a larger one, along an axis, the places ``kept(size, larger size)``."""
    validities = ValidityMasks(list(masks))

    def align(*outputs: Tensor) -> tuple[Tensor, Tensor] | None:
        found = list(outputs)
        if found[0].ndim != found[1].ndim:
            return None
        for axis, sizes in enumerate(zip(*(output.shape for output in outputs), strict=True)):
            if sizes[0] == sizes[1]:
                continue
            places, larger = kept(min(sizes), max(sizes)), sizes.index(max(sizes))
            if places is None:
                return None
            found[larger] = found[larger].index_select(axis, places.to(found[larger].device))
        real = validities.by_shape(found[0])
        first, second = found if real is None else (output[real] for output in found)
        return first, second

    return align


def check_repeats(case: Examination) -> None:
    """ExaminationError if two runs from one state differ."""
    if case.differs:
        entry = first_difference(log(case), log(case), where_real([]))
        where = "" if entry is None else f", first in {entry.operation}"
        if entry is not None and entry.place is not None:
            where += f" at {entry.place.file}:{entry.place.line}: {entry.place.code}"
        raise ExaminationError(
            f"step: it is not deterministic: {case.differs[0]} differs between two runs from one state{where}; "
            f"draw random numbers with torch, numpy.random or random, or give the step its numbers in the batch"
        )


@dataclass(frozen=True)
class Change:
    """A batch, ``batch``, for which loss and gradients must be those of another one, ``beside``; None: as it is."""

    words: str
    #: which parts of outputs are compared, to find the line
    align: Aligned
    batch: Any = None
    beside: Any = None
    #: by how many columns more the program's own functions pad
    wider: int = 0


class Run(NamedTuple):
    """What a run without dropout gave, and what was seen in it; see :class:`WithoutDropout`."""

    outcome: Any
    draws: list[Any]
    pads: list[tuple[list[int], bool]]
    frames: set[int]


def run(case: Examination, batch: Any = None, *, wider: int = 0, read: Any = Outcome.cloned) -> Run:
    """A run without dropout; the batch as it is runs once. What the program pads is that much wider."""
    as_it_is = batch is None and not wider
    if as_it_is and "run" in case.base:
        return case.base["run"]  # type: ignore[no-any-return]
    mode = WithoutDropout(wider=wider)
    seen = case.runner.run(mode, batch, after=lambda made: (read(made), mode.draws, mode.pads, mode.frames))
    if as_it_is:
        case.base["run"] = Run(*seen)
    return Run(*seen)


def first_wrong(case: Examination, name: str, changes: Iterator[Change], add: Any = None) -> bool | None:
    """Whether one of some changes changes something; it is added to the report. None if that cannot be said."""
    wrong = None
    for change in changes:
        difference = _changed(case, name, change)
        if difference is None:
            return None
        wrong = bool(difference)
        if wrong:
            (add or add_finding)(case, name, change, difference)
            break
    return wrong


def _changed(case: Examination, name: str, change: Change) -> Difference | None:
    """What differs between the runs of a change; None if that cannot be said."""
    words = change.words
    try:
        before = run(case, change.beside)
        # gradients of a process are not sent, but compared there
        read = lambda made: compare(before.outcome, made.cloned(), count=case.count)  # noqa: E731
        after = run(case, change.batch, wider=change.wider, read=read)
    except ExaminationError:
        raise
    except Exception as error:
        why = f"{words}: the program fails: {raised(error)}"
        if "fork-based multiprocessing" in why:  # PyTorch's threads are in the way: nothing was tried
            case.report.skip(name, why, "mg.doctor.examine(step, batch) to the program")
        else:
            case.report.note(name, why)
        return None
    if before.draws != after.draws or (name == "order" and any(shape for _, shape in before.draws)):
        why = "skipped: the program draws its own random numbers, which would differ"
        case.report.note(name, why, before.draws[0][0] if before.draws else None)
        return None
    difference: Difference = after.outcome
    if difference.is_doubtful:
        why = f"{words}, a relative difference of {difference.relative:.0e} may be rounding"
        case.report.skip(name, why, IN_DOUBLE)
        difference = Difference()
    case.report.tried(name, words, difference.words() or "nothing changed", _altered(case, change.batch))
    return difference


def _altered(case: Examination, batch: Any) -> list[Key]:
    """What is another tensor in a changed batch."""
    before = fields(case.runner.batch)
    return [key for key, held in fields(batch).items() if held is not before.get(key)]


def raised(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def finding(kind: str, entry: LoggedOperation | None, words: str, difference: Difference) -> Finding:
    """What changed, at the first line at which something did."""
    where = f"{entry.operation} is the first operation with a different result: " if entry else ""
    return Finding.at(entry, kind, f"{where}{words}, {difference.words()}")


def add_finding(case: Examination, name: str, change: Change, difference: Difference) -> None:
    """Say at which line the runs of a change part."""
    if name == "padding-length" and "padding-leak" in case.report.kinds():
        return  # another column is other garbage too; what leaks is known already
    before, after = log(case, change.beside), log(case, change.batch, wider=change.wider)
    entry = first_difference(before, after, change.align)
    case.report.add([finding(name, entry, change.words, difference)])


def padding_length(case: Examination) -> None:
    """One more column of padding on the side where the batch has it, or as many as add a frame; a sample without."""
    for paddings in by_columns(case.paddings):
        wrong = first_wrong(case, "padding-length", _wider(case, paddings))
        if wrong is None and paddings[0].source == "NaN":
            continue  # numbers that are missing are no positions
        if wrong or first_wrong(case, "padding-length", _alone(case, paddings, only_at_ends=wrong is None)):
            return
    first_wrong(case, "padding-length", _wider_inside(case))


def _wider(case: Examination, paddings: list[Padding]) -> Iterator[Change]:
    """More columns where the first of some paddings has its own: what takes several for a frame needs as many."""
    left, count, masks = pads_left(paddings), 1, [padding.mask for padding in case.paddings]
    while made := widened(case.runner.batch, paddings, left=left, count=count):
        batch, (_, columns) = made
        more = "one more column" if count == 1 else f"{count} more columns"
        align = _cropped(case, columns, count, masks, left=left)
        yield Change(f"with {more} of padding on the {'left' if left else 'right'}", align, batch)
        if 2 * count > columns or not any(1 < size <= columns // 2 for size in run(case).frames):
            return
        count *= 2


def _alone(case: Examination, paddings: list[Padding], *, only_at_ends: bool) -> Iterator[Change]:
    """A sample without padding: a program may ask if there is any, drop a frame, or take no other column."""
    left = pads_left(paddings)
    made = narrowed(case.runner.batch, paddings, case.count, left=left, only_at_ends=only_at_ends)
    if made is not None:
        words = f"with a sample of {made.columns} positions alone, and without its padding"
        align = _cropped(case, made.columns, made.cut, [made.mask], left=left)
        yield Change(words, align, made.narrow, beside=made.wide)


def _wider_inside(case: Examination) -> Iterator[Change]:
    """One more column where the program itself pads packed, nested or listed sequences."""
    try:
        pads = run(case).pads
    except Exception as error:
        case.report.note("padding-length", f"without dropout the program fails: {raised(error)}")
        return
    for lengths, left in pads[:1]:
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        align = _cropped(case, max(lengths), 1, [mask.flip(1) if left else mask], left=left)
        words = "with one more column where the program itself pads to the longest sequence"
        yield Change(words, align, wider=1)


def _cropped(case: Examination, columns: int, more: int, masks: Sequence[Tensor], *, left: bool) -> Aligned:
    """Outputs of which one has more columns: these are cut off, and what the masks have is compared."""
    first = bool(case.runner.presented.turned)  # the time

    def kept(few: int, many: int) -> Tensor | None:
        rows = few // columns
        if few % columns or many != rows * (columns + more):
            return None
        places = torch.arange(many).reshape((columns + more, rows) if first else (rows, columns + more))
        return places.narrow(int(not first), more if left else 0, columns).flatten()

    return where_real([mask.t() if first and mask.ndim == 2 else mask for mask in masks], kept)


def batch_bits(case: Examination) -> None:
    """The bits of a sample's results: alone, and then without its padding."""
    row, count = longest_first(case)[case.count // 2 :][:1], case.count
    masks = [padding.mask[row] for padding in case.paddings if len(padding.mask) == count]
    align = where_real(masks, lambda n, all_: row * n + torch.arange(n) if all_ == count * n else None)
    single = Change(f"with sample {row.tolist()} alone", align, selected(case.runner.batch, row, count))
    compared: list[bool] = []

    def rounded(a: Tensor, b: Tensor) -> bool:
        compared.append(a.ndim > 0 and not not_close(a, b))  # another result is for other experiments
        return compared[-1] and not same(a, b)

    for change in [single] * (count > 1) + [*_alone(case, case.paddings, only_at_ends=False)]:
        try:
            logs = log(case, change.beside), log(case, change.batch)
        except Exception as error:
            case.report.skip("batch-bits", f"{change.words}: the program fails: {raised(error)}")
            break
        entry = first_difference(*logs, change.align, rounded)
        result = "the same bits" if entry is None else "other bits"
        case.report.tried("batch-bits", change.words, result, _altered(case, change.batch))
        if entry is not None:
            words = f"{entry.operation} is the first operation with other bits, {change.words}"
            case.report.add([Finding.at(entry, "batch-bits", words)])
            break
        if case.base["chooses"]:
            why = "maskgrad chooses loops by the size of a batch, and none runs in an examination"
            case.report.skip("batch-bits", why, 'mg.use_kernels("invariant") around the step')
    if not any(compared):
        case.report.skip(
            "batch-bits", "no result could be compared", "another sample, computed with the rest"
        )


def order(case: Examination) -> None:
    """The rows in another order."""
    if case.count > 1:
        first_wrong(case, "order", _other_orders(case), _add_order)


def denominator(case: Examination) -> None:
    """Other orders of the samples make other parts of a step that passes them one by one; `order` sees it, too."""
    if not splits(case):
        raise ExaminationError(
            "step: it passes its batch to its model at once, or sample by sample; write the loop over the parts as the "
            "step, of two samples or more, `def step(batch): return sum(loss_of(part) for part in parts_of(batch))`"
        )
    order(case)
    even = not case.count % next(filter(None, case.runner.rows))
    if even and all(len(held.unique()) == 1 for held in _lengths(case)) and not case.report.findings:
        why = "every order makes parts of as many samples and real entries"
        case.report.skip("denominator", why, "samples of different lengths, or one more to the batch")


def _other_orders(case: Examination) -> Iterator[Change]:
    """Backwards, turned by one, and the longest sample first: parts then hold other numbers of tokens."""
    as_it_is = torch.arange(case.count)
    for rows in (as_it_is.flip(0), as_it_is.roll(1), longest_first(case)):
        if not torch.equal(rows, as_it_is):
            batch = selected(case.runner.batch, rows, case.count)
            yield Change(f"with the samples in the order {rows.tolist()}", _as_sets, batch)


def _add_order(case: Examination, name: str, change: Change, difference: Difference) -> None:
    if not splits(case):
        if _in_pairs(case):
            case.report.note("order", "the step pairs samples by their positions in the batch")
        else:
            add_finding(case, name, change, difference)
    elif "denominator" not in case.report.kinds():
        parts = f"the step splits the batch into parts of up to {max(case.runner.rows)} samples"
        words = f"{parts}, and {change.words}, which changes the parts"
        case.report.add([finding("denominator", last_division(case, change.batch), words, difference)])


def _as_sets(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
    """The entries of two outputs, wherever they are."""
    return (a.flatten().sort().values, b.flatten().sort().values) if a.shape == b.shape else None


def _lengths(case: Examination) -> list[Tensor]:
    """How many real entries each row has, by each mask that says so."""
    masks = [p.mask for p in case.paddings if p.mask.ndim and p.mask.shape[0] == case.count]
    return [mask.reshape(case.count, -1).sum(1).cpu() for mask in masks]


def longest_first(case: Examination) -> Tensor:
    """The rows by how many real entries they have; as they are if no mask says so."""
    known = _lengths(case)
    return known[0].argsort(descending=True, stable=True) if known else torch.arange(case.count)


def _in_pairs(case: Examination) -> bool:
    """Whether nothing changes as long as neighbours, or the halves of the batch, stay together."""
    count = case.count
    if count < 4 or count % 2:
        return False
    half = torch.arange(count // 2).flip(0)
    together = (torch.stack([2 * half, 2 * half + 1], 1).flatten(), torch.cat([half, half + count // 2]))
    runs = (run(case, selected(case.runner.batch, rows, count)).outcome for rows in together)
    return any(not compare(run(case).outcome, made, count=count) for made in runs)


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
