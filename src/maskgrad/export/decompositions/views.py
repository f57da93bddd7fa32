"""Rearrangements of entries, by index, never by multiplication, as masked values may be NaN."""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._refs.nn.functional
from torch import Tensor

from maskgrad.versions import is_before, release

__all__ = ["BODIES", "diagonal", "diagonal_places"]


def diagonal_places(rows: Any, columns: Any, offset: int, device: torch.device) -> Tensor:
    """Return the indices of a diagonal in a matrix of this size, in row-major order."""
    first_row, first_column = max(-offset, 0), max(offset, 0)
    length = torch.sym_max(torch.sym_min(rows - first_row, columns - first_column), 0)
    places: Tensor = torch.arange(length, device=device) * (columns + 1) + (
        first_row * columns + first_column
    )
    return places


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """PyTorch's exporter multiplies by an identity matrix, whose zeros do not remove NaN."""
    moved = x.movedim((dim1, dim2), (-2, -1))
    places = diagonal_places(moved.shape[-2], moved.shape[-1], offset, x.device)
    return moved.reshape(*moved.shape[:-2], -1 if x.numel() else 0).index_select(-1, places)


def diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Replace the entries of a diagonal."""
    moved = x.movedim((dim1, dim2), (-2, -1))
    places = diagonal_places(moved.shape[-2], moved.shape[-1], offset, x.device)
    flat = moved.flatten(-2)
    written = flat.scatter(-1, places.expand(src.shape), src.to(x.dtype))
    return written.reshape(moved.shape).movedim((-2, -1), (dim1, dim2))


def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Any:
    """Repeat position i ``repeats[i]`` times; the total must be known."""
    if output_size is None:
        return NotImplemented
    ends = torch.cumsum(repeats.to(torch.int64), 0)
    return (ends[None, :] <= torch.arange(output_size, device=repeats.device)[:, None]).sum(1)


def copied(view: Any) -> Any:
    """Copy a view, which is the same in a graph of values."""

    def body(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = view(x, *args, **kwargs)
        return result.clone() if isinstance(result, Tensor) else [part.clone() for part in result]

    return body


def as_strided(x: Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None) -> Any:
    """Entries by storage offset, for a tensor that is contiguous in storage."""
    if not x.is_contiguous() or x.storage_offset() != 0:
        return NotImplemented
    places = torch.zeros((), dtype=torch.int64, device=x.device) + (storage_offset or 0)
    for at, (length, step) in enumerate(zip(size, stride, strict=True)):
        steps = torch.arange(length, device=x.device) * step
        places = places + steps.reshape(-1, *[1] * (len(size) - at - 1))
    return x.flatten().index_select(0, places.flatten()).reshape(tuple(size))


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Write entries by row-major index."""
    flat, at, new = x.flatten(), index.flatten(), source.flatten()
    at = torch.where(at < 0, at + flat.shape[0], at)
    written = flat.scatter_add(0, at, new) if accumulate else flat.scatter(0, at, new)
    return written.reshape(x.shape)


def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """Indices of the first ``size`` nonzero entries, by their rank."""
    chosen = (x != 0).flatten()
    rank = torch.cumsum(chosen.to(torch.int64), 0) - 1
    row = torch.where(chosen & (rank < size), rank, size)
    places = torch.arange(row.shape[0], device=x.device)
    columns = []
    for extent in reversed(x.shape):
        column = torch.full((size + 1,), fill_value, dtype=torch.int64, device=x.device)
        columns.append(column.scatter(0, row, places % extent)[:size])
        places = torch.div(places, extent, rounding_mode="floor")
    return (
        torch.stack(columns[::-1], 1)
        if columns
        else torch.zeros((size, 0), dtype=torch.int64, device=x.device)
    )


def combinations(x: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Select by constant indices if the size is known; since 2.15 PyTorch finds them in a mask."""
    if isinstance(x.shape[0], torch.SymInt):
        return NotImplemented
    if r == 0:
        return x[:0]
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = torch.tensor([*choose(range(x.shape[0]), r)], dtype=torch.int64, device=x.device)
    return x[places.reshape(-1, r)]


def conv_tbc(x: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """A convolution with dimensions in another order: (time, batch, channels)."""
    moved = torch.conv1d(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return moved.permute(2, 0, 1)


def einsum(equation: str, tensors: Sequence[Tensor], *, path: Any = None) -> Tensor:
    """Pair by pair from the left; sum over dimensions as soon as they are not needed."""
    labels, output = _labels(equation.replace(" ", ""), tensors)
    found, names = _with_distinct_labels(tensors[0], labels[0])
    for at, (tensor, label) in enumerate(zip(tensors[1:], labels[1:], strict=True), 1):
        other, others = _with_distinct_labels(tensor, label)
        later = set(output).union(*labels[at + 1 :])
        found, names = _product(found, names, other, others, later)
    rest = [at for at, name in enumerate(names) if name not in output]
    if rest:
        found = found.sum(rest)
        names = "".join([name for name in names if name in output])
    return found.permute([names.index(name) for name in output])


def _labels(equation: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """One letter for each dimension of the operands and of the result, ellipses included."""
    inputs, arrow, output = equation.partition("->")
    labels = inputs.split(",")
    free = [letter for letter in string.ascii_letters + string.digits if letter not in equation]
    # number of dimensions in the ellipsis of each operand
    hidden = [
        tensor.ndim - len(label.replace("...", "")) if "..." in label else 0
        for tensor, label in zip(tensors, labels, strict=True)
    ]
    letters = "".join(free[: max(hidden)])
    if not arrow:
        counted = inputs.replace(",", "").replace(".", "")
        output = "..." * ("..." in inputs) + "".join(sorted({n for n in counted if counted.count(n) == 1}))
    filled = [
        label.replace("...", letters[len(letters) - number :])
        for label, number in zip(labels, hidden, strict=True)
    ]
    return filled, output.replace("...", letters)


def _with_distinct_labels(x: Tensor, names: str) -> tuple[Tensor, str]:
    """Take the diagonal for letters that occur twice."""
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            first, second = names.index(name), names.rindex(name)
            x = diagonal(x, 0, first, second)
            names = names[:first] + names[first + 1 : second] + names[second + 1 :] + name
    return x, names


def _product(a: Tensor, a_names: str, b: Tensor, b_names: str, later: set[str]) -> tuple[Tensor, str]:
    """One batched product of matrices: shared letters that are needed later, own letters, shared ones that are not."""
    sizes = dict(zip(b_names, b.shape, strict=True))
    for name, size in zip(a_names, a.shape, strict=True):
        known = sizes.get(name, 1)
        if isinstance(known, int) and known == 1:  # size 1 broadcasts
            sizes[name] = size
    for mine, theirs, number in ((a_names, b_names, 0), (b_names, a_names, 1)):
        alone = [at for at, name in enumerate(mine) if name not in theirs and name not in later]
        if alone:
            a, b = (a.sum(alone), b) if number == 0 else (a, b.sum(alone))
    a_names = "".join([n for n in a_names if n in b_names or n in later])
    b_names = "".join([n for n in b_names if n in a_names or n in later])
    shared = [n for n in a_names if n in b_names]
    batch, summed = [n for n in shared if n in later], [n for n in shared if n not in later]
    left, right = [n for n in a_names if n not in shared], [n for n in b_names if n not in shared]

    def matrix(x: Tensor, names: str, first: list[str], second: list[str]) -> Tensor:
        x = x.permute([names.index(n) for n in (*batch, *first, *second)])
        x = x.expand([sizes[n] for n in (*batch, *first, *second)])
        return x.reshape([math.prod([sizes[n] for n in part]) for part in (batch, first, second)])

    found = torch.bmm(matrix(a, a_names, left, summed), matrix(b, b_names, summed, right))
    names = [*batch, *left, *right]
    return found.reshape([sizes[n] for n in names]), "".join(names)


BODIES: dict[str, Callable[..., Any]] = {
    "diagonal diagonal_copy": diagonal,
    "linalg_diagonal": lambda a, *, offset=0, dim1=-2, dim2=-1: diagonal(a, offset, dim1, dim2),
    "diagonal_scatter": diagonal_scatter,
    "pixel_shuffle": torch._refs.nn.functional.pixel_shuffle,  # the exporter's supports 4-D floats only
    "pixel_unshuffle": torch._refs.nn.functional.pixel_unshuffle,
    "repeat_interleave.Tensor": repeat_interleave,
    "select_copy.int": copied(torch.ops.aten.select.int),
    "slice_copy.Tensor": copied(torch.ops.aten.slice.Tensor),
    "detach_copy": copied(torch.ops.aten.detach.default),
    "as_strided": as_strided,
    "put": put,
    "nonzero_static": nonzero_static,
    "trace": lambda x: diagonal(x).sum(),
    "conv_tbc": conv_tbc,
    "einsum": einsum,
}
if not is_before(
    release(torch.__version__), "2.15"
):  # older versions export it themselves, without constants in a body
    BODIES["combinations"] = combinations
