"""Losses on rows: the rows that all operands have. Plain targets are not read beyond the ends."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.semantics.entries import Entries, as_entries, is_complete, rearranged
from maskgrad.semantics.jagged.rows import (
    Call,
    aligned,
    in_frame,
    is_jagged,
    out_of_frame,
    padded,
)
from maskgrad.semantics.jagged.views import unsqueeze
from maskgrad.semantics.losses.regression import forgotten_weight
from maskgrad.semantics.stored.entries import StoredEntries, shape_of

__all__ = ["by_class", "by_position"]


def _result(result: Any, pattern: JaggedPattern, partly: bool) -> Any:
    """A scalar unchanged; a loss for each row with the pattern of the rows, or with a Boolean mask.

    Args:
        result: losses of the rows.
        pattern: pattern of the rows.
        partly: some rows may be without a loss.
    """
    if not isinstance(result, Entries) or not result.values.ndim:
        return result
    values, mask = (out_of_frame(part, pattern.at) for part in result)
    found = StoredEntries(values, pattern)
    if not partly or is_complete(mask):
        return found
    return Entries(padded(found).values, padded(StoredEntries(mask, pattern)).values)


def by_position(call: Call) -> Any:
    """Losses that compare operands entry by entry."""
    operation, function, args, kwargs = call
    if operation.name == "nn.functional.l1_loss" and len(args) < 6 and kwargs.get("weight") is None:
        weight = forgotten_weight()
        kwargs = kwargs if weight is None else {**kwargs, "weight": weight}
    operands = [*args, *kwargs.values()]
    taking_part = [i for i, o in enumerate(operands) if isinstance(o, (Tensor, StoredEntries, Entries))]
    ranks = {len(shape_of(operands[i])) for i in taking_part}
    # a variance without the last dimension applies to all of it
    fits = operation.name != "nn.functional.gaussian_nll_loss" or len(ranks) == 1
    found = aligned([operands[i] for i in taking_part]) if fits else None
    if found is None or kwargs.get("reduction") == "batchmean":
        return call._replace(kwargs=kwargs).on_padded()
    at, partly = found.pattern.at, any(isinstance(o, Entries) for o in found.operands)
    for i, rows in zip(taking_part, found.operands, strict=True):
        if isinstance(rows, Entries):
            operands[i] = Entries(*(in_frame(part, at) for part in rows))
        elif isinstance(rows, Tensor) and rows.ndim:
            in_place = in_frame(rows, at)
            operands[i] = as_entries(in_place) if is_jagged(operands[i]) else in_place
    named = dict(zip(kwargs, operands[len(args) :], strict=True))
    result = operation.body(function, tuple(operands[: len(args)]), named)
    return _result(result, found.pattern, partly)


def by_class(call: Call) -> Any:
    """``cross_entropy`` and ``nll_loss``: scores with a dimension of classes, and labels without, or probabilities."""
    _, _, args, kwargs = call
    names = ("input", "target")
    given = dict(zip(names, args[:2], strict=False)) | {n: kwargs[n] for n in names if n in kwargs}
    scores, target = (given[n] for n in names)
    rank = len(shape_of(scores))
    others = [*args[2:], *[v for k, v in kwargs.items() if k not in names]]
    if rank < 2 or any(isinstance(o, (StoredEntries, Entries)) for o in others):
        return None
    labels = len(shape_of(target)) == rank - 1
    if labels:  # a dimension for the class
        target = unsqueeze(target, 1) if is_jagged(target) else rearranged(target, lambda t: t.unsqueeze(1))
    found = aligned([scores, target])
    if found is None or 1 in found.pattern.at:
        return None
    at, partly = found.pattern.at, any(isinstance(o, Entries) for o in found.operands)
    rows = []
    for operand in found.operands:
        parts = [in_frame(p, at) for p in (operand if isinstance(operand, Entries) else (operand,))]
        rows.append(Entries(*parts) if len(parts) == 2 else as_entries(parts[0]))
    if labels:
        rows[1] = Entries(*(part.squeeze(1) for part in rows[1]))
    rest = {k: v for k, v in kwargs.items() if k not in names}
    result = call.operation.body(call.function, (*rows, *args[2:]), rest)
    after = tuple([place - (place > 1) for place in at])
    return _result(result, found.pattern.moved(after), partly or labels)
