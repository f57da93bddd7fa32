r"""Reductions and softmax over segments of stored entries, in ordinary PyTorch.

Segment k is the entries ``order[pointers[k]:pointers[k + 1]]``, or, without an ``order``, the entries
``pointers[k]:pointers[k + 1]`` themselves, as in a CSR tensor.

.. math:: s_k = \sum_{i \in k} x_i, \qquad y_i = \frac{e^{x_i}}{\sum_{j \in k(i)} e^{x_j}}, \qquad
          \bar x_i = y_i \Bigl(\bar y_i - \sum_{j \in k(i)} y_j \bar y_j\Bigr)

Shapes: ``n`` entries, ``g`` segments, ``*dense`` the shape of one entry; ``pointers`` (g + 1,), ``order`` (n,) lists
every entry once. Each segment has at least one entry. Halves are added in float32, everything else as in
``merge_rows``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.reference.coalescing import merge_slots
from maskgrad.kernels.reference.reductions import HALVES

_WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.complex32: torch.complex64,
    torch.complex64: torch.complex128,
}


def sort_rows(indices: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Segments of equal ``indices`` (n,): ``pointers``, ``order`` (stable), and the distinct indices, ascending."""
    ascending, order = torch.sort(indices, stable=True)
    rows, counts = torch.unique_consecutive(ascending, return_counts=True)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), order, rows


def segment_index(pointers: Tensor, order: Tensor | None, number: int) -> Tensor:
    """The segment of each of ``number`` entries (n,)."""
    index = torch.repeat_interleave(pointers.diff(), output_size=number)
    return index if order is None else torch.empty_like(index).index_copy(0, order, index)


def segment_sum(
    values: Tensor, pointers: Tensor, order: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:
    """(n, *dense) -> (g, *dense), in ``dtype``, or else that of the values (float32 for halves)."""
    if dtype is None:
        dtype = torch.float32 if values.dtype in HALVES else values.dtype
    return _merged(values.to(dtype), pointers, order, "sum")


def segment_spread(values: Tensor, pointers: Tensor, order: Tensor | None, number: int) -> Tensor:
    """The adjoint of the sum: each entry gets what its segment has, (g, *dense) -> (n, *dense)."""
    return values.index_select(0, segment_index(pointers, order, number))


def segment_extremum(values: Tensor, pointers: Tensor, order: Tensor | None, largest: bool) -> Tensor:
    """(n, *dense) -> (g, *dense); NaN wins; the gradient is shared among ties, as in ``torch.amax``."""
    return _merged(values, pointers, order, "amax" if largest else "amin")


def segment_softmax(values: Tensor, pointers: Tensor, order: Tensor | None, logarithm: bool) -> Tensor:
    """Softmax within each segment, or its logarithm, (n, *dense) -> (n, *dense)."""
    wide = values.float() if values.dtype in HALVES else values
    best = segment_extremum(wide.detach(), pointers, order, True)
    shifted = wide - segment_spread(best, pointers, order, len(values))
    powers = shifted.exp()
    added = segment_sum(powers, pointers, order)
    if logarithm:
        result = shifted - segment_spread(added.log(), pointers, order, len(values))
    else:
        result = powers / segment_spread(added, pointers, order, len(values))
    return result.to(values.dtype)


def segment_softmax_backward(
    grad: Tensor, output: Tensor, pointers: Tensor, order: Tensor | None, logarithm: bool
) -> Tensor:
    """The gradient of the entries from that of their (logarithmic) softmax ``output``, (n, *dense) all."""
    wide, soft = (x.float() if x.dtype in HALVES else x for x in (grad, output))
    if logarithm:
        total = segment_sum(wide, pointers, order)
        result = wide - soft.exp() * segment_spread(total, pointers, order, len(grad))
    else:
        total = segment_sum(soft * wide, pointers, order)
        result = soft * (wide - segment_spread(total, pointers, order, len(grad)))
    return result.to(output.dtype)


def widened(values: Tensor) -> Tensor:
    """In the precision that results are calculated in: halves in float32, float32 in float64."""
    return values.to(_WIDER.get(values.dtype, values.dtype))


def per_segment(pointers: Tensor, like: Tensor) -> Tensor:
    """The number of entries of each segment, shaped to be combined with ``like`` (., *dense), in its (real) dtype."""
    dtype = like.dtype.to_real() if like.is_complex() else like.dtype
    return pointers.diff().to(dtype).reshape(-1, *(1,) * (like.ndim - 1))


def _merged(values: Tensor, pointers: Tensor, order: Tensor | None, reduce: str) -> Tensor:
    index = segment_index(pointers, order, values.shape[0])
    return merge_slots(index, values, pointers.shape[0] - 1, pointers.diff(), reduce)
