"""Arrow's lists of different lengths, and jagged batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad.interop.outgoing import EXACT_WIDER
from maskgrad.interop.sequence_lengths import sequences_of
from maskgrad.masked_tensor.sequences import from_offsets
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from maskgrad.interop.columns import Column

__all__ = ["has_lengths", "list_array", "parts_of_lists", "sequences_of_lists"]


def has_lengths(type_: pa.DataType) -> bool:
    """Whether an Arrow type is one of lists, each of its own length."""
    import pyarrow.types as kinds

    return any(
        is_kind(type_)
        for is_kind in (kinds.is_list, kinds.is_large_list, kinds.is_list_view, kinds.is_large_list_view)
    )


def parts_of_lists(array: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, Tensor]:
    """The elements of all lists that are there, one behind the other, and the length of each list, a null one 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # without a chunk it stays one
            array = pa.array([], array.type)
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    return array.flatten(), torch.from_numpy(lengths.to_numpy(zero_copy_only=False).copy())


def sequences_of_lists(
    elements: Column, lengths: Tensor, dtype: torch.dtype | None, layout: torch.layout
) -> MaskedTensor:
    """A batch of lists, jagged or with a Boolean mask, in memory of its own."""
    values = elements.values if dtype is None else elements.values.to(dtype)
    if elements.is_lent and values is elements.values:
        values = values.clone()
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    batch = from_offsets(values, offsets)
    if layout == torch.jagged:
        if not bool(elements.mask.all()):
            row = int((~elements.mask).reshape(len(values), -1).any(1).nonzero()[0])
            sequence = int(torch.searchsorted(offsets, row, right=True)) - 1
            raise ValueError(
                f"{elements.place} has a null at position {row - int(offsets[sequence])} of list {sequence}, and a "
                "jagged tensor has no gaps; layout=torch.strided keeps them, under a Boolean mask"
            )
        return batch
    known = MaskedTensor(elements.mask.contiguous(), batch._pattern).filled(False)
    return of_entries(batch.to_dense()._values, known)


def list_array(x: MaskedTensor, function: str) -> pa.Array:
    """A jagged tensor as Arrow lists."""
    import numpy as np
    import pyarrow as pa

    values, pattern = sequences_of(x, function, None)
    if values.dtype.is_complex:
        raise TypeError(
            f"{function}: x must be real, found {values.dtype}; convert x.real and x.imag one after the other"
        )
    numbers: Any = values.detach().cpu().resolve_neg()
    if numbers.dtype == torch.bfloat16:
        numbers = numbers.to(EXACT_WIDER[torch.bfloat16])
    # Arrow's memory never changes: a copy
    elements = pa.array(np.array(numbers.numpy()).reshape(-1), from_pandas=False)
    for size in reversed(values.shape[1:]):
        if not size:
            raise ValueError(f"{function}: x of shape {tuple(x.shape)} has no features to store")
        elements = pa.FixedSizeListArray.from_arrays(elements, size)
    offsets = pattern.offsets.cpu().numpy()
    if values.shape[0] < 2**31:
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), elements)
    return pa.LargeListArray.from_arrays(pa.array(offsets.copy()), elements)
