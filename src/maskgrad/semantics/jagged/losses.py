"""Losses on rows: the rows that all operands have. Plain targets are not read beyond the ends."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from maskgrad.kernels.smallest import is_complete
from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.semantics.entries import Entries, as_entries, rearranged
from maskgrad.semantics.jagged.rows import Call, aligned, in_frame, is_jagged, out_of_frame, padded
from maskgrad.semantics.jagged.views import unsqueeze
from maskgrad.semantics.stored.entries import StoredEntries, is_masked, shape_of
from maskgrad.semantics.stored.losses import named_arguments

__all__ = ["by_class", "by_position"]


def _result(result: Any, pattern: JaggedPattern, partly: bool) -> Any:
    """A scalar unchanged; a loss for each row, where some may be without (``partly``: then with a Boolean mask)."""
    if not isinstance(result, Entries) or not result.values.ndim:
        return result
    values, mask = (out_of_frame(part, pattern.at) for part in result)
    found = StoredEntries(values, pattern)
    if not partly or is_complete(mask):
        return found
    return Entries(padded(found).values, padded(StoredEntries(mask, pattern)).values)


def _framed(rows: Any, at: tuple[int, ...]) -> Entries:
    """Rows in a frame of full rank, as entries."""
    parts = [in_frame(part, at) for part in (rows if isinstance(rows, Entries) else (rows,))]
    return Entries(*parts) if len(parts) == 2 else as_entries(parts[0])


def by_position(call: Call) -> Any:
    """Losses that compare operands entry by entry."""
    given = named_arguments(*call)
    call = call._replace(args=(), kwargs=given)
    operands = {key: x for key, x in given.items() if is_masked(x) or isinstance(x, Tensor)}
    # a variance without the last dimension applies to all of it
    ranks = {len(shape_of(x)) for x in operands.values()}
    fits = given.get("reduction") != "batchmean" and ("var" not in operands or len(ranks) == 1)
    found = aligned(list(operands.values())) if fits else None
    if found is None:
        return call.on_padded()
    rows = {
        key: row if isinstance(row, Tensor) and not row.ndim else _framed(row, found.pattern.at)
        for key, row in zip(operands, found.operands, strict=True)
    }
    result = call.operation.body(call.function, (), given | rows)
    return _result(result, found.pattern, any(isinstance(row, Entries) for row in found.operands))


def by_class(call: Call) -> Any:
    """``cross_entropy`` and ``nll_loss``: scores with a dimension of classes, and labels without, or probabilities."""
    given = call.bound("input target")
    scores, target = given.pop("input"), given.pop("target")
    rest = call.args[2:]
    if len(shape_of(scores)) < 2 or any(map(is_masked, (*rest, *given.values()))):
        return None
    labels = len(shape_of(target)) == len(shape_of(scores)) - 1
    if labels:  # a dimension for the class
        target = unsqueeze(target, 1) if is_jagged(target) else rearranged(target, lambda t: t.unsqueeze(1))
    found = aligned([scores, target])
    if found is None or 1 in found.pattern.at:
        return None
    at = found.pattern.at
    rows = [_framed(operand, at) for operand in found.operands]
    if labels:
        rows[1] = Entries(*(part.squeeze(1) for part in rows[1]))
    result = call.operation.body(call.function, (*rows, *rest), given)
    after = tuple([place - (place > 1) for place in at])
    partly = any(isinstance(o, Entries) for o in found.operands)
    return _result(result, found.pattern.moved(after), partly or labels)
