"""Sums of products of rows: the equation of the call, with one letter for batch and ragged dimension."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.mode import can_read
from maskgrad.patterns.jagged import JaggedPattern, same_lengths
from maskgrad.semantics.contractions import factors_of, meeting_of
from maskgrad.semantics.entries import HALVES, Entries, widened
from maskgrad.semantics.jagged.operators import are_wanted, can_multiply, product_of_sequences
from maskgrad.semantics.jagged.rows import Call, aligned, at_rows, from_padded, is_jagged, trailing
from maskgrad.semantics.jagged.sequences import totals
from maskgrad.semantics.products import Equation, einsum_call, written_out
from maskgrad.semantics.stored.contractions import RANKS
from maskgrad.semantics.stored.entries import StoredEntries, is_masked, shape_of

__all__ = ["RULES"]


def matmul(call: Call) -> Any:
    """``matmul`` and its special cases by rank."""
    left, right, options = factors_of(call.args, call.kwargs)
    shapes = shape_of(left), shape_of(right)
    ranks, name = tuple(map(len, shapes)), call.operation.name
    batches_differ = name == "bmm" and shapes[0][:1] != shapes[1][:1]
    if ranks != RANKS.get(name, ranks) or 0 in ranks or batches_differ:
        return None
    if options or call.function is operator.imatmul:
        return None
    if isinstance(right, Tensor) and ranks[1] <= 2 and trailing(left, 1) and left.shape[-1]:
        return StoredEntries(torch.matmul(left.values, right), left.pattern)
    return contracted(call, meeting_of(*ranks), [left, right])


def einsum(call: Call) -> Any:
    """``einsum`` in all its forms."""
    args, kwargs = call.args, call.kwargs
    text, factors = einsum_call((kwargs["equation"], *args) if "equation" in kwargs else args)
    try:
        return contracted(call, written_out(text, [len(shape_of(factor)) for factor in factors]), factors)
    except ValueError:
        return None


def contracted(call: Call, meeting: Equation, factors: list[Any]) -> Any:
    """The sums of the existing products, with one letter for batch and ragged dimension.

    None if these dimensions are separated, or if the intermediate result is larger than the operands.
    """
    first = next(i for i, factor in enumerate(factors) if is_jagged(factor))
    pattern: JaggedPattern = factors[first].pattern
    frame = [meeting.terms[first][place] for place in pattern.at]
    found = [_in_rows(f, list(t), frame, pattern) for f, t in zip(factors, meeting.terms, strict=True)]
    sizes = {
        c: n for f, t in zip(factors, meeting.terms, strict=True) for c, n in zip(t, shape_of(f), strict=True)
    }
    if any(part is None for part in found) or any(
        c not in meeting.result and not n for c, n in sizes.items()
    ):
        return None
    parts: list[_Part] = [part for part in found if part is not None]
    rest = "".join([c for c in meeting.result if c not in frame])
    kept = [c for c in frame if c in meeting.result]
    if any(part.of_sequences for part in parts):
        if kept != frame:
            return None
        if not can_read(*pattern.tensors()):
            values = _by_operator(parts, frame[-1] + rest, pattern)
            if values is not None:
                return _placed(values, meeting.result, frame, pattern)
            places = tuple([meeting.result.index(c) for c in frame])
            return from_padded(call.on_padded().values, pattern.moved(places))
        return _placed(_each(parts, frame[-1] + rest, pattern), meeting.result, frame, pattern)
    if kept == frame:
        return _placed(_sum(parts, frame[-1] + rest), meeting.result, frame, pattern)
    if not kept:
        values = _sum(parts, rest)
        return Entries(values, (pattern.offsets[-1] > 0).expand(values.shape))
    if kept != frame[:-1] or not any(set(rest) <= set(term) for term in meeting.terms):
        return None
    wide = [part._replace(values=widened(part.values)) for part in parts]
    result = totals(_sum(wide, frame[-1] + rest), pattern)
    order = [("".join(kept) + rest).index(c) for c in meeting.result]
    return result and Entries(
        result.values.to(parts[0].values.dtype).permute(order), result.mask.permute(order)
    )


class _Part(NamedTuple):
    """A factor with one row for each position, or for each sequence, or neither; the first letter is the row."""

    values: Tensor
    letters: str
    of_sequences: bool = False


def _in_rows(factor: Any, term: list[str], frame: list[str], pattern: JaggedPattern) -> _Part | None:
    """A factor by the rows of the pattern; a matrix per sequence is not copied for each row."""
    if isinstance(factor, Entries) or len(set(term)) < len(term):
        return None
    if is_jagged(factor):
        fits = [term[place] for place in factor.pattern.at] == frame and same_lengths(pattern, factor.pattern)
        return (
            _Part(factor.values, "".join([frame[-1], *[c for c in term if c not in frame]])) if fits else None
        )
    repeated = [i for i, c in enumerate(term) if c in frame and factor.shape[i] == 1]
    plain, term = factor.squeeze(repeated), [c for i, c in enumerate(term) if i not in repeated]
    own, rest = [c for c in frame if c in term], [c for c in term if c not in frame]
    sizes = pattern.sizes
    if any(plain.shape[term.index(c)] != size for c, size in zip(frame, sizes, strict=True) if c in own):
        return None
    if not own:
        return _Part(plain, "".join(term))
    plain = plain.permute([term.index(c) for c in (*own, *rest)])
    if own != frame and len(rest) > 1:
        if own != frame[:-1]:  # a matrix for each position
            return None
        return _Part(plain.flatten(0, len(own) - 1), frame[-1] + "".join(rest), True)
    plain = plain[tuple([slice(None) if c in own else None for c in frame])]
    return _Part(at_rows(plain, pattern.canonical()), frame[-1] + "".join(rest))


def _sum(parts: list[_Part], result: str) -> Tensor:
    """``einsum``, except where it is twice as slow: for matrices of single rows, which use a call per sequence."""
    if len(parts) == 2:
        (a, left, _), (b, right, _) = parts
        if left == right and left[:-1] == result and a.dtype not in HALVES:
            return (a * b).sum(-1)
        if len(left) == 2 and left[1:] == right[:1] and left[0] + right[1:] == result:
            return torch.matmul(a, b)
    return torch.einsum(f"{','.join([p.letters for p in parts])}->{result}", *[p.values for p in parts])


def _by_operator(parts: list[_Part], result: str, pattern: JaggedPattern) -> Tensor | None:
    """The same in a graph, for real rows and one matrix per sequence."""
    parts = sorted(parts, key=lambda part: part.of_sequences)
    if [part.of_sequences for part in parts] != [False, True]:
        return None
    (rows, one, _), (matrices, other, _) = parts
    if not are_wanted(rows) or one[:1] != result[0] or not can_multiply(one, other[1:], result):
        return None
    return product_of_sequences(f"{one},{other[1:]}->{result}", rows, matrices, pattern.offsets)


def _each(parts: list[_Part], result: str, pattern: JaggedPattern) -> Tensor:
    """One product for each sequence that has rows."""
    lengths = pattern.lengths().tolist()
    row, split = result[0], []
    for part in parts:
        if part.of_sequences:
            split.append(
                [part._replace(values=one, letters=part.letters[1:]) for one in part.values.unbind()]
            )
        elif part.letters[:1] == row:
            split.append([part._replace(values=one) for one in part.values.split(lengths)])
        else:
            split.append([part] * len(lengths))
    one_each = [
        _sum(list(own), result) for own, n in zip(zip(*split, strict=True), lengths, strict=True) if n
    ]
    return torch.cat(one_each) if one_each else _sum([own[0] for own in split], result)


def _placed(values: Tensor, result: str, frame: list[str], pattern: JaggedPattern) -> StoredEntries:
    return StoredEntries(values, pattern.moved(tuple([result.index(c) for c in frame])))


def bilinear(call: Call) -> Any:
    """``F.bilinear`` of two batches along features."""
    given = call.bound("input1 input2 weight bias")
    first, second = given.pop("input1"), given.pop("input2")
    if any(map(is_masked, given.values())) or len(shape_of(first)) != len(shape_of(second)):
        return None
    found = aligned([first, second])
    if found is None or any(map(is_masked, found.operands)):
        return None
    if max(found.pattern.at) == len(shape_of(first)) - 1:
        return None
    number = found.pattern.index.shape[0]
    rows = [operand.expand(number, *operand.shape[1:]) for operand in found.operands]
    return StoredEntries(F.bilinear(*rows, **given), found.pattern)


def addmm(call: Call) -> Any:
    """``torch.addmm`` of flattened rows with a plain matrix, and a bias that is the same for all."""
    given = call.bound("input mat1 mat2")
    added, x, other = (given.pop(name) for name in ("input", "mat1", "mat2"))
    plain = isinstance(added, Tensor) and isinstance(other, Tensor) and set(given) <= {"beta", "alpha"}
    if not plain or not trailing(x, 1) or (added.ndim == 2 and added.shape[0] != 1) or len(call.args) > 3:
        return None
    return StoredEntries(torch.addmm(added, x.values, other, **given), x.pattern)


RULES: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv"), matmul),
    "einsum": einsum,
    "bilinear": bilinear,
    "addmm": addmm,
}
