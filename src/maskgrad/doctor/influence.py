"""Who may influence whom: other documents and the future are padding, for whom they must not be seen by."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.case import Examination, PerturbedInput, run_perturbed
from maskgrad.doctor.inferred import labels_ignored
from maskgrad.doctor.leaks import leak
from maskgrad.doctor.packed import Documents, alone, content, positions_of, with_labels
from maskgrad.doctor.padding import Padding
from maskgrad.doctor.reshaped import Aligned, Change, first_wrong, where_real

__all__ = ["document_alone", "document_leak", "future_leak"]


def document_leak(case: Examination) -> None:
    """For a few documents: the labels of all others ignored, and their inputs rewritten."""
    if case.documents is not None:
        numbers = _some(case.documents.count)
        tries = {f"document {number}": functools.partial(torch.eq, other=number) for number in numbers}
        _first_leak(case, "document-leak", case.documents, tries, "other documents")


def _first_leak(case: Examination, kind: str, tokens: Documents, tries: Mapping[str, Any], noun: str) -> None:
    """Hide what is not seen in one try after the other, until something leaks."""
    made = False
    for others, seen in tries.items():
        with _only_labels(case, tokens, seen) as batch:
            hidden = PerturbedInput(kind, _hidden(case, tokens, seen), noun=noun, others=others, batch=batch)
            if batch is not None and leak(case, hidden):
                return
            made |= batch is not None
    if not made:
        option = "labels of integers (-100), a MaskedTensor, or weights, named 'label', 'target' or 'weight'"
        case.report.skip(kind, f"no label can be ignored for {noun}", option)


def _hidden(case: Examination, tokens: Documents, seen: Callable[[Tensor], Tensor]) -> list[Padding]:
    """The inputs of all positions for which ``seen`` does not hold."""
    inputs = content(case.runner.batch, tokens).items()
    return [Padding(key, seen(ids), tokens.source) for key, ids in inputs]


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
    if case.documents is not None and "document-leak" not in case.report.kinds():  # else it is known already
        first_wrong(case, "document-alone", _documents_alone(case, case.documents))


def _documents_alone(case: Examination, documents: Documents) -> Iterator[Change]:
    for number in _some(documents.count):
        seen = functools.partial(torch.eq, other=number)
        packed = with_labels(case.runner.batch, documents, seen)
        single = None if packed is None else alone(packed, documents, number)
        if single is not None:
            yield Change(f"with document {number} alone", _cut(seen(documents.ids)), single, beside=packed)


def future_leak(case: Examination) -> None:
    """For a few positions: the labels after each ignored, and the inputs after it rewritten."""
    positions = _positions(case)
    if positions is None:
        case.report.skip("future-leak", "no tensor of the batch has the shape (samples, positions)")
        return
    if not _is_settled(case, positions):
        axis = _axis_of_time(case, positions)
        if axis is None:
            why = "which axis of the batch is time is unknown: samples influence each other along both"
            case.report.skip("future-leak", why, "an nn module with batch_first, or padding={key: mask}")
            return
        positions = _along(positions, axis)
    last = int(positions.ids.max())
    chosen = sorted({last // 4, last // 2, last - 1} - {last})
    tries = {f"positions up to {place}": functools.partial(torch.le, other=place) for place in chosen}
    _first_leak(case, "future-leak", positions, tries, "later positions")


def _is_settled(case: Examination, positions: Documents) -> bool:
    """Whether padding, documents or a module say that the samples come first."""
    rows, columns = positions.ids.shape[0], positions.ids.shape[-1]
    near = {(rows, columns + step) for step in (-1, 0, 1)}
    read = case.use is not None and case.use.batch_first & near
    one = rows == 1 or positions.ids.ndim == 1
    return one or case.documents is not None or bool(case.paddings or case.runner.presented.turned or read)


def _along(positions: Documents, axis: int) -> Documents:
    """The number of each position along an axis."""
    steps = torch.arange(positions.ids.shape[axis])
    return Documents((steps if axis else steps[:, None]).expand(positions.ids.shape), positions.source)


def _axis_of_time(case: Examination, positions: Documents) -> int | None:
    """The only axis along which entries influence each other, or the one along which they do in one direction."""
    # the second axis where nothing does: each position is computed for itself
    sides = (torch.le, torch.gt)
    ways = {axis: [_influences(case, _along(positions, axis), side) for side in sides] for axis in (0, 1)}
    mixing = [axis for axis in ways if any(ways[axis])] or [1]
    if len(mixing) == 2:
        mixing = [axis for axis in mixing if not all(ways[axis])]
    return mixing[0] if len(mixing) == 1 else None


def _influences(case: Examination, positions: Documents, side: Callable[..., Tensor]) -> bool:
    """Whether the other half of the positions influences what is computed for one."""
    kept = functools.partial(side, other=int(positions.ids.max()) // 2)
    hidden = _hidden(case, positions, kept)
    with _only_labels(case, positions, kept) as batch:
        return batch is not None and bool(run_perturbed(case, hidden, "numbers", batch=batch)[0])


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


def _cut(chosen: Tensor) -> Aligned:
    """Outputs for a pack and for one document of it: the document's row and positions are cut out of the pack."""
    indices = chosen.nonzero()
    cuts = {(len(indices), chosen.shape[-1]): indices[:, -1]}
    if chosen.ndim > 1:
        cuts[1, len(chosen)] = indices[:1, 0]
    return where_real(kept=lambda few, many: cuts.get((few, many)))
