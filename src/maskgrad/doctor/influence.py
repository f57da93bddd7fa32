"""Who may influence whom: other documents and the future are padding, for whom they must not be seen by."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.aligned import first_difference, log
from maskgrad.doctor.case import Examination, PerturbedInput, run_perturbed
from maskgrad.doctor.labels import labels_ignored
from maskgrad.doctor.leaks import leak
from maskgrad.doctor.packed import Documents, alone, content, positions_of, with_labels
from maskgrad.doctor.padding import Padding
from maskgrad.doctor.reshaped import changed, finding

__all__ = ["document_alone", "document_leak", "future_leak"]

UNLABELLED = (
    "no label can be ignored for {whom}",
    "labels of integers (-100 is ignored), a MaskedTensor, or weights, under a name with 'label', 'target' or 'weight'",
)


def document_leak(case: Examination) -> None:
    """For a few documents: the labels of all others ignored, and their inputs rewritten."""
    documents = case.documents
    if documents is None:
        return
    words = {
        "what": "the other documents",
        "noun": "other documents",
        "how": "after",
    }
    tries = [
        (functools.partial(torch.eq, other=number), {**words, "others": f"document {number}"})
        for number in _some(documents.count)
    ]
    _first_leak(case, "document-leak", documents, tries, "all documents but one")


def _first_leak(
    case: Examination,
    kind: str,
    tokens: Documents,
    tries: Sequence[tuple[Callable[[Tensor], Tensor], dict[str, str]]],
    ignored: str,
) -> None:
    """Hide what is not seen in one try after the other, until something leaks; a note where no label can be ignored."""
    made = False
    for seen, words in tries:
        with _only_labels(case, tokens, seen) as batch:
            if batch is None:
                continue
            made = True
            inputs = content(case.runner.batch, tokens).items()
            paddings = [Padding(key, seen(ids), tokens.source) for key, ids in inputs]
            if leak(case, PerturbedInput(kind, paddings, batch=batch, **words)):
                return
    if not made:
        case.skipped(kind, *(text.format(whom=ignored) for text in UNLABELLED))


@contextlib.contextmanager
def _only_labels(case: Examination, tokens: Documents, seen: Callable[[Tensor], Tensor]) -> Iterator[Any]:
    """Inside, only labels of positions count for which ``seen`` holds, in the batch that is given; None if unknown.

    By the names of labels and weights, else by what cross entropies read.
    """
    batch = with_labels(case.runner.batch, tokens, seen)
    if batch is None and case.use is not None:
        case.runner.ignored = labels_ignored(case.use.labels, case.runner.batch, tokens, seen)
        batch = None if case.runner.ignored is None else case.runner.batch
    try:
        yield batch
    finally:
        case.runner.ignored = None


def document_alone(case: Examination) -> None:
    """For the same documents: the loss in the pack is that of the document alone."""
    documents = case.documents
    if documents is None or "document-leak" in case.report.kinds():
        return  # what comes of other documents is known already
    for number in _some(documents.count):
        packed = with_labels(case.runner.batch, documents, functools.partial(torch.eq, other=number))
        single = None if packed is None else alone(packed, documents, number)
        if packed is None or single is None:
            continue
        words = f"document {number} alone"
        difference = changed(case, "document-alone", single, words, beside=packed)
        if difference:
            align = _cut(documents.ids == number)
            entry = first_difference(log(case, packed), log(case, single), align)
            case.report.add([finding("document-alone", entry, f"with {words}", difference)])
            return


def future_leak(case: Examination) -> None:
    """For a few positions: the labels after each ignored, and the inputs after it rewritten."""
    positions = _positions(case)
    if positions is None:
        case.skipped("future-leak", "no tensor of the batch has the shape (samples, positions)")
        return
    if not _is_settled(case, positions):
        axis = _axis_of_time(case, positions)
        if axis is None:
            why = "which axis of the batch is time is unknown: samples influence each other along both"
            case.skipped("future-leak", why, "an nn module with batch_first, or padding={key: mask}")
            return
        positions = _along(positions, axis)
    last = int(positions.ids.max())
    tries = [
        (
            functools.partial(torch.le, other=position),
            {
                "what": f"the positions after {position}",
                "noun": "later positions",
                "others": f"positions up to {position}",
                "how": "after",
            },
        )
        for position in sorted({last // 4, last // 2, last - 1} - {last})
    ]
    _first_leak(case, "future-leak", positions, tries, "later positions")


def _is_settled(case: Examination, positions: Documents) -> bool:
    """Whether padding, documents or a module say that the samples come first."""
    rows, columns = positions.ids.shape[0], positions.ids.shape[-1]
    near = {(rows, columns + step) for step in (-1, 0, 1)}
    known = bool(case.paddings) or case.documents is not None or rows == 1 or positions.ids.ndim == 1
    return (
        known
        or bool(case.runner.presented.turned)
        or (case.use is not None and bool(case.use.batch_first & near))
    )


def _along(positions: Documents, axis: int) -> Documents:
    """The number of each position along an axis."""
    steps = torch.arange(positions.ids.shape[axis])
    return Documents((steps if axis else steps[:, None]).expand(positions.ids.shape), positions.source)


def _axis_of_time(case: Examination, positions: Documents) -> int | None:
    """The only axis along which entries influence each other, or of two the one along which they do in one direction.

    The second axis where nothing does: each position is computed for itself.
    """
    ways = {
        axis: [_influences(case, _along(positions, axis), later=later) for later in (True, False)]
        for axis in (0, 1)
    }
    mixing = [axis for axis, directions in ways.items() if any(directions)]
    if len(mixing) == 2:
        mixing = [axis for axis in mixing if not all(ways[axis])]
    return (
        1
        if not mixing and not any(any(directions) for directions in ways.values())
        else mixing[0]
        if len(mixing) == 1
        else None
    )


def _influences(case: Examination, positions: Documents, *, later: bool) -> bool:
    """Whether one half of the positions influences what is computed for the other."""
    half = int(positions.ids.max()) // 2
    kept = functools.partial(torch.le if later else torch.gt, other=half)
    with _only_labels(case, positions, kept) as batch:
        return batch is not None and _differs(case, positions, kept, batch)


def _differs(case: Examination, positions: Documents, kept: Callable[[Tensor], Tensor], batch: Any) -> bool:
    """Whether other contents where ``kept`` does not hold change anything."""
    paddings = [
        Padding(key, kept(ids), positions.source)
        for key, ids in content(case.runner.batch, positions).items()
    ]
    return bool(run_perturbed(case, paddings, "numbers", batch=batch)[0])


def _some(count: int) -> list[int]:
    """The last, the middle and the first: what a causal model leaks comes from before."""
    return sorted({0, count // 2, count - 1}, reverse=True)


def _positions(case: Examination) -> Documents | None:
    """The number of each position, in the shape (samples, positions) that most tensors begin with."""
    documents = case.documents
    if documents is not None and documents.ids.ndim == 1:
        return Documents(torch.arange(len(documents.ids)), "positions")
    read = [] if case.use is None else case.use.shapes_of_labels(case.runner.batch)
    shapes = [tuple(padding.mask.shape) for padding in case.paddings if padding.mask.ndim == 2]
    return positions_of(case.runner.batch, read or shapes)


def _cut(chosen: Tensor) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
    """Outputs for a pack and for one document of it: the document's row and positions are cut out of the pack."""
    indices = chosen.nonzero()
    cuts = {(chosen.shape[-1], len(indices)): indices[:, -1]}
    if chosen.ndim > 1:
        cuts[len(chosen), 1] = indices[:1, 0]

    def align(pack: Tensor, single: Tensor) -> tuple[Tensor, Tensor] | None:
        if pack.ndim != single.ndim:
            return None
        for axis, (before, after) in enumerate(zip(pack.shape, single.shape, strict=True)):
            if before == after:
                continue
            if (before, after) not in cuts:
                return None
            pack = pack.index_select(axis, cuts[before, after].to(pack.device))
        return pack, single

    return align
