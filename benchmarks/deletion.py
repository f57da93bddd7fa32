"""The reference that results are compared with before any clock starts: PyTorch in float64 on what is specified.

Along the lines that an operation reduces or normalises, unspecified entries are deleted, and PyTorch's own operation
is applied to what is left. That is the library's third law, and shares nothing with any way to compute it fast. Of
many lines a sample is taken; whole tensors are compared between contenders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.agreement import agree

__all__ = ["Verifier", "as_lines", "verifier"]

LINES = 24

#: what is left of a line, and where in the line it was -> a number, or as many numbers
Deleted = Callable[[Tensor, Tensor], Tensor]
Verifier = Callable[[Any], None]


def as_lines(t: Tensor, dims: tuple[int, ...]) -> Tensor:
    """``t`` as a matrix (lines, length) whose rows run along ``dims``."""
    kept = [dim for dim in range(t.ndim) if dim not in dims]
    return t.permute(*kept, *dims).flatten(len(kept)).reshape(-1, _length(t, dims))


def _length(t: Tensor, dims: tuple[int, ...]) -> int:
    length = 1
    for dim in dims:
        length *= t.shape[dim]
    return length


def verifier(
    deleted: Deleted,
    x: Tensor,
    mask: Tensor,
    dims: tuple[int, ...],
    dtype: str,
    weight: Tensor | None = None,
) -> Verifier:
    """A function that raises AssertionError unless it is given the right result.

    The result is a tensor, whose unspecified entries (if it has the shape of ``x``) do not matter; with ``weight``,
    the result and the gradient of its weighted sum, which must be exactly 0 where ``x`` is unspecified.
    """
    lines, marks = as_lines(x.detach(), dims), as_lines(mask, dims)
    chosen = torch.linspace(0, len(lines) - 1, min(LINES, len(lines))).long().unique().tolist()
    expected = [_expected(deleted, lines[i], marks[i], _of_line(weight, x, dims, i)) for i in chosen]

    def verify(found: Any) -> None:
        result, gradient = found if weight is not None else (found, None)
        for i, (value, slope) in zip(chosen, expected, strict=True):
            mark = marks[i]
            if value.ndim:
                agree(as_lines(result, dims)[i][mark], value, dtype, "specified entries")
            else:
                agree(result.reshape(-1)[i], value, dtype, "the value")
            if gradient is not None and slope is not None:
                line = as_lines(gradient, dims)[i]
                agree(line[mark], slope, dtype, "the gradient")
                if line[~mark].count_nonzero():
                    raise AssertionError("the gradient of an unspecified entry is not 0")

    return verify


def _of_line(weight: Tensor | None, x: Tensor, dims: tuple[int, ...], i: int) -> Tensor | None:
    """The part of ``weight`` that belongs to line ``i``: one number, or one for each entry."""
    if weight is None:
        return None
    return as_lines(weight, dims)[i] if weight.shape == x.shape else weight.reshape(-1)[i]


def _expected(
    deleted: Deleted, line: Tensor, mark: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    left = line[mark].double().requires_grad_(weight is not None)
    value = deleted(left, mark)
    if weight is None:
        return value, None
    incoming = weight[mark].double() if value.ndim else weight.double()
    return value.detach(), torch.autograd.grad(value, left, incoming)[0]
