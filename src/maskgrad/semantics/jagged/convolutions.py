"""Convolutions over time of sequences of different lengths, each computed separately by one call of PyTorch.

Sequences are concatenated on a line, each with its own padding, and each begins at a window of the line.
Windows that reach from one sequence into the next are computed, but not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.mode import can_read
from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.semantics.convolutions import (
    FORWARD,
    TRANSPOSED,
    can_wrap,
    of_dim,
    own_result,
    paddings,
    source,
)
from maskgrad.semantics.jagged.rows import Call, from_padded, is_jagged, of_lengths
from maskgrad.semantics.stored.entries import StoredEntries, is_masked

if TYPE_CHECKING:
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = ["RULES"]


class Line(NamedTuple):
    """Layout of the sequences during the convolution.

    Attributes:
        size: length of the line.
        places: positions of the rows on it.
        results: the pattern of the results.
        rows: positions of the results among all outputs.
    """

    size: int
    places: Tensor
    results: JaggedPattern
    rows: Tensor


def convolution(names: str, transposed: bool) -> Callable[[Call], Any]:
    """The rule for one direction, of (B, C, T) with ``specified="sequence"``; ``"any"`` may fill holes."""

    def rule(call: Call) -> Any:
        given = call.bound(names)
        x, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
        groups, mode = given.pop("groups", 1), given.pop("padding_mode", "zeros")
        if given.pop("specified", "any") != "sequence" or not _fits(x, weight, bias, given):
            return None
        taps = weight.shape[-1]
        keeps = mode == "zeros" and not transposed and _keeps_lengths(taps, given)
        eager = can_read(x.values, *x.pattern.tensors())
        if not eager and not (
            keeps and mode() == "graph"
        ):  # the number of result rows depends on the lengths
            return from_padded(call.on_padded().values, x.pattern) if keeps else None
        if mode != "zeros":
            x, given["padding"] = _wrapped(x, given["padding"], mode), 0
        line = _line(x.pattern, taps, given, transposed, keeps)
        if eager and not line.rows.shape[0]:  # PyTorch may refuse the padded batch, too
            return from_padded(call.on_padded().values, line.results)
        data = x.values.new_zeros(line.size, x.values.shape[1]).index_copy(0, line.places, x.values)
        given["padding"] = 0
        found: Tensor = call.function(
            data.t().contiguous().unsqueeze(0), weight, bias, groups=groups, **given
        )
        return StoredEntries(found.squeeze(0).t().index_select(0, line.rows), line.results)

    return rule


def _fits(x: Any, weight: Any, bias: Any, geometry: dict[str, Any]) -> bool:
    """Return whether this is a plain convolution of sequences; the padded form raises PyTorch's errors."""
    if (
        not is_jagged(x)
        or x.pattern.at != (0, 2)
        or x.values.ndim != 2
        or is_masked(weight)
        or is_masked(bias)
    ):
        return False
    padding, stride = geometry.get("padding", 0), of_dim(geometry.get("stride", 1), 0)
    if weight.ndim != 3 or stride < 1:
        return False
    if isinstance(padding, str):
        return stride == 1
    return (padding if isinstance(padding, int) else min(padding)) >= 0


def _keeps_lengths(taps: int, geometry: dict[str, Any]) -> bool:
    around = sum(paddings(taps, 0, geometry))
    span = of_dim(geometry.get("dilation", 1), 0) * (taps - 1)
    return of_dim(geometry.get("stride", 1), 0) == 1 and around == span


def _line(pattern: JaggedPattern, taps: int, geometry: dict[str, Any], transposed: bool, keeps: bool) -> Line:
    stride, (before, after) = of_dim(geometry.get("stride", 1), 0), paddings(taps, 0, geometry)
    lengths = pattern.lengths()
    results = pattern
    if not keeps:
        sizes = pattern.frame.shape[0], own_result(pattern.longest, taps, 0, geometry, transposed)
        results = of_lengths(own_result(lengths, taps, 0, geometry, transposed), sizes, pattern.at)
    if transposed:  # room for all results, of which there are more
        room, per_step = own_result(lengths, taps, 0, geometry | {"padding": 0}, transposed), (1, stride)
        skipped = 0, before
    else:
        room, per_step = lengths + (before + after), (stride, 1)
        skipped = before, 0
    steps = (room + stride - 1) // stride
    start = steps.cumsum(0) - steps
    places, rows = (
        start.index_select(0, p.sequences()) * step + (skip + p.positions())
        for p, step, skip in zip((pattern, results), per_step, skipped, strict=True)
    )
    # with as many results as entries the line is known without reading lengths; it has room for at least one window
    span = before + after
    size = len(rows) + (len(lengths) + 1) * span + 1 if keeps else int(steps.sum()) * per_step[0]
    return Line(size, places, results, rows)


def _wrapped(x: Jagged, widths: Sequence[int], mode: str) -> Jagged:
    """Pad each sequence with its own entries; without padding where PyTorch would refuse it."""
    (before, after), pattern = widths, x.pattern
    lengths = pattern.lengths()
    wide = torch.where(can_wrap(lengths, max(widths), mode), lengths + (before + after), 0)
    sizes = pattern.frame.shape[0], pattern.longest + before + after
    longer = of_lengths(wide, sizes, pattern.at)
    which = longer.sequences()
    own = source(longer.positions() - before, lengths.index_select(0, which), mode)
    rows = pattern.offsets.index_select(0, which) + own
    return StoredEntries(x.values.index_select(0, rows), longer)  # type: ignore[return-value]


RULES = {
    "nn.functional.conv1d": convolution(FORWARD, transposed=False),
    "nn.functional.conv_transpose1d": convolution(TRANSPOSED, transposed=True),
}
