"""Who may influence whom: other documents and the future are padding, for whom they must not be seen by."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from maskgrad.doctor.batches import Padding
from maskgrad.doctor.case import Examination, Hidden
from maskgrad.doctor.leaks import leak
from maskgrad.doctor.packed import Documents, alone, content, positions_of, with_labels
from maskgrad.doctor.reshaped import changed, finding, first_difference, log

__all__ = ["document_alone", "document_leak", "future_leak"]

UNLABELLED = (
    "skipped: no label can be ignored for {whom}; labels must be integers (ignored with -100), a MaskedTensor, "
    "or weighted, with a name that contains 'label', 'target' or 'weight'"
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
    batches = [with_labels(case.trial.batch, tokens, seen) for seen, _ in tries]
    if all(batch is None for batch in batches):
        case.note(kind, UNLABELLED.format(whom=ignored))
    for (seen, words), batch in zip(tries, batches, strict=True):
        places = content(case.trial.batch, tokens).items()
        paddings = [Padding(key, seen(ids), tokens.source) for key, ids in places]
        if batch is not None and leak(case, Hidden(kind, paddings, batch=batch, **words)):
            return


def document_alone(case: Examination) -> None:
    """For the same documents: the loss in the pack is that of the document alone."""
    documents = case.documents
    if documents is None or "document-leak" in case.report.kinds():
        return  # what comes of other documents is known already
    for number in _some(documents.count):
        packed = with_labels(case.trial.batch, documents, functools.partial(torch.eq, other=number))
        single = None if packed is None else alone(packed, documents, number)
        if packed is None or single is None:
            continue
        words = f"document {number} alone"
        difference = changed(case, "document-alone", single, words, beside=packed)
        if difference:
            places = (documents.ids == number).nonzero()[:, -1]
            align = _cut(documents.ids.shape[-1], places)
            entry = first_difference(log(case, packed), log(case, single), align)
            case.report.add([finding("document-alone", entry, f"with {words}", difference)])
            return


def future_leak(case: Examination) -> None:
    """For a few positions: the labels after each ignored, and the inputs after it rewritten."""
    positions = _positions(case)
    if positions is None:
        case.note("future-leak", "skipped: no tensor of the batch has the shape (samples, positions)")
        return
    last = positions.ids.shape[-1] - 1
    tries = [
        (
            functools.partial(torch.le, other=place),
            {
                "what": f"the positions after {place}",
                "noun": "later positions",
                "others": f"positions up to {place}",
                "how": "after",
            },
        )
        for place in sorted({last // 4, last // 2, last - 1} - {last})
    ]
    _first_leak(case, "future-leak", positions, tries, "later positions")


def _some(count: int) -> list[int]:
    """The last, the middle and the first: what a causal model leaks comes from before."""
    return sorted({0, count // 2, count - 1}, reverse=True)


def _positions(case: Examination) -> Documents | None:
    """The number of each position, in the shape (samples, positions) that most tensors begin with."""
    documents = case.documents
    if documents is not None and documents.ids.ndim == 1:
        return Documents(torch.arange(len(documents.ids)), "positions")
    shapes = [tuple(padding.mask.shape) for padding in case.paddings if padding.mask.ndim == 2]
    return positions_of(case.trial.batch, shapes)


def _cut(tokens: int, places: Tensor) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
    """Outputs for a pack beside those for one document of it: its places are cut out of the pack."""
    size = len(places)

    def align(pack: Tensor, single: Tensor) -> tuple[Tensor, Tensor] | None:
        if pack.ndim != single.ndim:
            return None
        for axis, (before, after) in enumerate(zip(pack.shape, single.shape, strict=True)):
            if before == after:
                continue
            if (before, after) != (tokens, size):
                return None
            pack = pack.index_select(axis, places.to(pack.device))
        return pack, single

    return align
