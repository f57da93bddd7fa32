"""Awkward arrays: lists of different lengths, stored like a jagged batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from maskgrad.interop.sequences import sequences_of
from maskgrad.masked_tensor.creation import masked
from maskgrad.masked_tensor.numpy_memory import holds_numbers, in_numpy, tensor_of
from maskgrad.masked_tensor.sequences import check_layout, from_offsets
from maskgrad.masked_tensor.storage import to_dense
from maskgrad.optional_packages import require

if TYPE_CHECKING:
    import awkward as ak

    from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["from_awkward", "to_awkward"]


def from_awkward(array: ak.Array, layout: torch.layout = torch.jagged) -> MaskedTensor:
    """Convert an awkward array of lists to a batch of sequences.

    Args:
        array: B lists of numbers, of different lengths (``B * var * float64``), or of lists of one size within them
            (``B * var * 3 * float64``). A missing list (None) has length 0.
        layout: ``torch.jagged`` concatenates the lists; ``torch.strided`` pads them and has a Boolean
            mask.

    Returns:
        MaskedTensor ``(B, T, *features)`` of the dtype of the numbers, T the longest length. A missing number (None)
        within a list is unspecified; the result then has a Boolean mask, for any layout.

    Zero copy:
        To ``torch.jagged``, numbers and offsets are shared if ``array`` stores them without gaps, as
        ``ak.to_packed(array)`` does, in writable memory; in-place writes then show in ``array``.

    Raises:
        MissingDependencyError: awkward is not installed.
        TypeError: ``array`` is not an awkward array of lists of numbers.
        ValueError: lists differ in length in a second dimension, or ``layout`` is unknown.

    Dense equivalent: ``ak.pad_none(array, T)`` as a masked array of numpy.

    Example:
        >>> import awkward as ak
        >>> mg.interop.from_awkward(ak.Array([[1., 2.], [], [3.]])).lengths()
        tensor([2, 0, 1])

    Source: https://awkward-array.org/doc/main/reference/generated/ak.Array.html
    """
    function = "mg.interop.from_awkward"
    require("awkward", function)
    import awkward as ak

    check_layout(layout)
    if not isinstance(array, ak.Array):
        raise TypeError(
            f"{function}: array must be an awkward Array, found {type(array).__name__}; convert it with ak.Array(lists)"
        )
    if ak.fields(array) or array.ndim < 2:
        raise TypeError(
            f"{function}: array must have lists of numbers, found type {array.type}; choose a field of records, as in "
            "array['x'], and use mg.from_numpy(ak.to_numpy(array)) for arrays without lists"
        )
    lengths = ak.to_numpy(ak.fill_none(ak.num(array, axis=1), 0)).astype("int64")
    packed = ak.to_packed(ak.from_regular(ak.drop_none(array, axis=0), axis=1)).layout
    content = packed.content
    try:
        numbers = ak.to_numpy(ak.Array(content))
    except ValueError as error:
        raise ValueError(
            f"{function}: array must be ragged in one dimension only, found type {array.type}; see ak.to_regular "
            f"({str(error).strip().splitlines()[0]})"
        ) from None
    if not holds_numbers(numbers.dtype):
        raise TypeError(
            f"{function}: array must contain numbers, found type {array.type}; see ak.values_astype"
        )
    if len(packed) == len(lengths):
        offsets = tensor_of(ak.to_numpy(packed.offsets.data)).long()
    else:
        offsets = torch.nn.functional.pad(torch.from_numpy(lengths).cumsum(0), (1, 0))
    known = ~np.ma.getmaskarray(numbers)
    x = from_offsets(tensor_of(np.ma.getdata(numbers)), offsets)
    if not known.all():
        return masked(
            to_dense(x).filled(0), to_dense(from_offsets(torch.from_numpy(known), offsets)).filled(False)
        )
    return x if layout == torch.jagged else to_dense(x)


def to_awkward(x: MaskedTensor) -> ak.Array:
    """Convert a batch of sequences to an awkward array of lists.

    Args:
        x: MaskedTensor ``(B, T, *features)`` of layout ``torch.jagged``, or with a Boolean mask of padded sequences.
            For bfloat16, which NumPy lacks, becomes float32.

    Returns:
        Awkward array ``B * var * features * dtype``. Without gradients.

    Zero copy:
        Values and offsets of a jagged tensor on the CPU are shared, so that in-place writes show in the
        array. A padded batch is copied, without its padding.

    Raises:
        MissingDependencyError: awkward is not installed.
        TypeError: ``x`` is not a MaskedTensor, or has a sparse layout such as COO.
        ValueError: its mask is not that of padded sequences, or it has several batch dimensions.

    Example:
        >>> x = mg.from_lengths(torch.arange(6.).reshape(2, 3), torch.tensor([3, 1]))
        >>> mg.interop.to_awkward(x).to_list()
        [[0.0, 1.0, 2.0], [3.0]]

    Source: https://awkward-array.org/doc/main/reference/generated/ak.contents.ListOffsetArray.html
    """
    function = "mg.interop.to_awkward"
    require("awkward", function)
    import awkward as ak

    values, pattern = sequences_of(x, function, None)
    content: Any = ak.contents.NumpyArray(in_numpy(values, (torch.bfloat16, torch.complex32)))
    offsets = ak.index.Index64(pattern.offsets.cpu().numpy())
    return ak.Array(ak.contents.ListOffsetArray(offsets, content))
