"""Results whose bits do not depend on the batch: what the formulas compute with under ``use_kernels("invariant")``.

* A sum runs from the first entry to the last, in float64: ``index_add`` does so, for any number of rows, columns and
  threads. Zeros in place of masked entries, or of padding, change no sum. It takes 3 ns for each entry, ``sum`` 0.2.
* A reduction of a dimension is that of its rows (:func:`as_rows`): jagged and padded batches compute the same.
* A product of matrices is one of blocks of 64 (:func:`product`). BLAS libraries choose a routine by the sizes: with few
  rows another one, which adds in another order. Among multiples of 64 up to 192 each result is added over the shared
  dimension in one order, so that zeros behind it, more rows, more matrices and more threads change nothing. That is
  measured, not promised: the law's tests compare the bits.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.kernels.segments import Rows, segment_sum
from maskgrad.kernels.selection import is_invariant

__all__ = [
    "as_rows", "cumulative_product", "in_blocks", "in_pieces", "is_invariant", "product", "sum_along", "tree_product",
]  # fmt: skip

#: Rows and columns of matrices in products are multiples of it, and features, which no batch changes, of the other.
BLOCK = 64
FEATURES = 16
#: MKL shares out longer sums among threads on some processors (256 on Intel's); gradients add over rows and columns.
PART = 192
#: Entries of an elementwise function that are computed by one call: half of what PyTorch gives to a thread.
PIECE = 16_384
_PRODUCTS = (torch.matmul, torch.mm, torch.bmm, torch.mv, operator.matmul, Tensor.matmul, Tensor.__matmul__)

#: Functions of which IEEE arithmetic rounds the result, in whichever loop.
_ROUNDED_ONCE = frozenset(
    getattr(place, name)
    for place, form in ((torch, "{}"), (Tensor, "{}"), (operator, "{}"), (Tensor, "__{}__"))
    for name in map(
        form.format, ("add", "sub", "mul", "div", "truediv", "neg", "abs", "eq", "ne", "lt", "le", "gt", "ge")
    )
    if hasattr(place, name)
)


def as_rows(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Rows, Callable[[Tensor, bool], Tensor]]:
    """Rows (n, *dense) of which each segment is reduced, the segments, and the result's shape, ``keepdim`` or not.

    The shape is restored of one value for each segment, or of one for each entry where one dimension is reduced.
    """
    dims = sorted(d % x.ndim for d in dims)
    shape = [1 if d in dims else size for d, size in enumerate(x.shape)]
    first = dims[0]
    if dims != list(range(first, dims[-1] + 1)):
        kept = [d for d in range(x.ndim) if d not in dims]
        x, first = x.permute(*kept, *dims), len(kept)
    outer, inner = x.shape[:first].numel(), x.shape[first : first + len(dims)].numel()
    dense = x.shape[first + len(dims) :]
    pointers = torch.arange(outer + 1, device=x.device) * inner

    def placed(found: Tensor, keepdim: bool) -> Tensor:
        found = found.reshape(shape)
        return found if keepdim else found.squeeze(tuple(dims))

    return x.reshape(outer * inner, *dense), Rows(pointers, None, outer * inner), placed


def sum_along(x: Tensor, dims: Sequence[int], keepdim: bool = True) -> Tensor:
    """``x.sum(dims, keepdim)``; in the mode in one order, rounded once."""
    if not (is_invariant() and dims and x.ndim and (x.is_floating_point() or x.is_complex())):
        return x.sum(tuple(dims), keepdim)
    rows, segments, placed = as_rows(x, dims)
    rows = rows.to(torch.promote_types(x.dtype, torch.float64))
    return placed(segment_sum(rows, segments), keepdim).to(x.dtype)


def tree_product(x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """``x.prod(dims, keepdim)`` by products of pairs, the derivatives of which are right beside zeros.

    PyTorch computes them in another way if there is a zero anywhere, in another sample too.
    """
    dims = sorted(d % x.ndim for d in dims)
    shape = [1 if d in dims else size for d, size in enumerate(x.shape)]
    kept = [d for d in range(x.ndim) if d not in dims]
    x = x.permute(*kept, *dims).flatten(len(kept)) if len(kept) < x.ndim else x.unsqueeze(-1)
    x = x if x.shape[-1] else F.pad(x, (0, 1), value=1)
    while x.shape[-1] > 1:
        x = F.pad(x, (0, x.shape[-1] % 2), value=1)
        x = x[..., ::2] * x[..., 1::2]
    return x.reshape(shape if keepdim else [x.shape[place] for place in range(len(kept))])


def cumulative_product(x: Tensor, dim: int) -> Tensor:
    """``x.cumprod(dim)`` by doubling: each becomes the product of the last 2, 4, 8, … up to there."""
    step = 1
    while step < x.shape[dim]:
        before, after = x.narrow(dim, 0, x.shape[dim] - step), x.narrow(dim, step, x.shape[dim] - step)
        x, step = torch.cat([x.narrow(dim, 0, step), before * after], dim), 2 * step
    return x


def product(left: Tensor, right: Tensor, inner: int = BLOCK, columns: int = BLOCK) -> Tensor:
    """``left @ right`` by blocks: of ``FEATURES`` along ``inner`` and ``columns`` that are the same in any batch."""
    if left.ndim == 1:
        return product(left.unsqueeze(0), right, inner, columns).squeeze(-1 if right.ndim == 1 else -2)
    if right.ndim == 1:
        return product(left, right.unsqueeze(-1), inner).squeeze(-1)
    if right.ndim == 2 < left.ndim:  # a plain matrix, the same for all samples
        return product(left.flatten(0, -2), right, inner, columns).reshape(*left.shape[:-1], right.shape[-1])
    high, wide = _blocks(left, BLOCK, inner).split(PART, -2), _blocks(right, inner, columns).split(PART, -1)
    found = torch.cat([torch.cat([_added(x, y) for y in wide], -1) for x in high], -2)
    return found[..., : left.shape[-2], : right.shape[-1]]


def _added(x: Tensor, y: Tensor) -> Tensor:
    return functools.reduce(torch.add, map(torch.matmul, x.split(PART, -1), y.split(PART, -2)))


def _blocks(x: Tensor, rows: int, columns: int) -> Tensor:
    return F.pad(x, (0, -x.shape[-1] % columns, 0, -x.shape[-2] % rows))


def in_blocks(function: Callable[..., Tensor], *args: Any, **options: Any) -> Tensor:
    """``function(*args)``; in the mode, if it is ``F.linear`` or ``matmul``, by blocks."""
    if options or not is_invariant() or not (args[0].is_floating_point() and args[0].ndim and args[1].ndim):
        return function(*args, **options)
    if function is F.linear:
        found = product(args[0], args[1].mT if args[1].ndim > 1 else args[1], FEATURES, FEATURES)
        return found if len(args) < 3 or args[2] is None else found + args[2]
    return product(*args) if function in _PRODUCTS else function(*args)


def in_pieces(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """``function(*args, **options)``, entry by entry; in the mode in pieces of a multiple of 64 entries.

    PyTorch's loops compute the last few entries of a tensor, or of a thread's part, one by one, and most functions then
    by another formula. A piece is too small to be shared out among threads.
    """
    if not is_invariant() or function in _ROUNDED_ONCE:
        return function(*args, **options)
    tensors = [x for x in (*args, *options.values()) if isinstance(x, Tensor) and x.ndim]
    shape = torch.broadcast_shapes(*[x.shape for x in tensors])
    if not shape.numel() or not any(x.is_floating_point() for x in tensors):
        return function(*args, **options)
    number = shape.numel()

    def pieces(x: Any) -> Any:
        if not (isinstance(x, Tensor) and x.ndim):
            return [x] * -(-number // PIECE)
        return F.pad(x.expand(shape).reshape(-1), (0, -number % BLOCK), value=1).split(PIECE)

    given = [pieces(x) for x in args], {name: pieces(x) for name, x in options.items()}
    found = [
        function(*[x[k] for x in given[0]], **{name: x[k] for name, x in given[1].items()})
        for k in range(-(-number // PIECE))
    ]
    if isinstance(found[0], Tensor):
        return torch.cat(found)[:number].reshape(shape)
    return type(found[0])([torch.cat(parts)[:number].reshape(shape) for parts in zip(*found, strict=True)])
