"""Apache Arrow: validity bitmaps become masks, buffers of numbers become tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from maskgrad.errors import UnsupportedOperationError
from maskgrad.interop import columns
from maskgrad.interop.sequences import sequences_of
from maskgrad.masked_tensor.sequences import check_layout, from_offsets
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries
from maskgrad.optional_packages import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ["check_lists", "check_type", "from_arrow", "read", "read_lists", "to_arrow"]


def has_lengths(type_: pa.DataType) -> bool:
    """Whether an Arrow type is one of lists, each of its own length."""
    import pyarrow.types as kinds

    names = ("is_list", "is_large_list", "is_list_view", "is_large_list_view")
    return any(getattr(kinds, name)(type_) for name in names)


def read_lists(
    array: pa.Array | pa.ChunkedArray, place: str, dtype: torch.dtype | None, layout: torch.layout, cast: str
) -> MaskedTensor:
    """A batch of the lists of an array, jagged or with a Boolean mask, in memory of its own; a null list is empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    check_type(array.type.value_type, f"{place}, inside its lists,", cast)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # without a chunk it stays one
            array = pa.array([], array.type)
    nullable = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    lengths = torch.from_numpy(nullable.to_numpy(zero_copy_only=False).copy())
    elements = read(array.flatten(), place)
    values = columns.owned(elements, dtype)
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


def _list_array(x: MaskedTensor, function: str) -> pa.Array:
    """A jagged tensor as Arrow lists."""
    import numpy as np
    import pyarrow as pa

    values, pattern = sequences_of(x, function, None)
    columns.check_real(values.dtype, function)
    # Arrow's memory never changes: a copy
    elements = pa.array(np.array(columns.in_numpy(values, (torch.bfloat16,))).reshape(-1), from_pandas=False)
    for size in reversed(values.shape[1:]):
        if not size:
            raise ValueError(f"{function}: x of shape {tuple(x.shape)} has no features to store")
        elements = pa.FixedSizeListArray.from_arrays(elements, size)
    offsets = pattern.offsets.cpu().numpy()
    if values.shape[0] < 2**31:
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), elements)
    return pa.LargeListArray.from_arrays(pa.array(offsets.copy()), elements)


_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32,
        torch.uint64,
    )
} | {"halffloat": torch.float16, "float": torch.float32, "double": torch.float64}  # fmt: skip


def from_arrow(
    obj: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
) -> MaskedTensor:
    """Arrow data: null is unspecified; NaN is a number like any other.

    The validity bitmap is read as it is: nothing goes through NaN, and integers stay integers.

    Args:
        obj: array or chunked array of Booleans, integers or floating-point numbers, or of lists of them (or of lists of
            one fixed size in lists); or a table or record batch of such columns without lists.
        dtype: dtype of the result. None: the array's own; for a table, what ``torch.stack`` would promote its columns
            to (int64 with float32 gives float32).
        layout: of lists of different lengths: ``torch.strided`` pads them and has a Boolean mask, ``torch.jagged``
            stores them one behind the other. Everything else is strided.

    Returns:
        MaskedTensor (n,), (n, size) for lists of a fixed size (a null list is unspecified as a whole), (n, longest)
        for others (a null list is one of length 0), or (rows, columns) for a table. Column names and metadata are not
        kept.

    Memory:
        Everything is copied, once: Arrow's memory never changes, and what is written to a MaskedTensor in place is
        written where its values lie. The mask is unpacked from bits, and costs nothing where Arrow has no bitmap.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        TypeError: ``obj`` is not Arrow data, or has a type without numbers; the message names the column.
        ValueError: ``layout`` is jagged and a list holds a null, or it is jagged for what has no lists.

    Example:
        >>> import pyarrow as pa
        >>> mg.from_arrow(pa.array([1, None, 3]))
        masked([1, --, 3])
        >>> mg.from_arrow(pa.array([[1, 2], [3]]), layout=torch.jagged).lengths()
        tensor([2, 1])
        >>> mg.from_arrow(pa.array([1., None, float("nan")])).mask
        tensor([ True, False,  True])
    """
    require("pyarrow", "mg.from_arrow")
    import pyarrow as pa

    columns.check_dtype(dtype, "mg.from_arrow")
    check_layout(layout)
    if isinstance(obj, (pa.Array, pa.ChunkedArray)) and has_lengths(obj.type):
        return read_lists(obj, "obj", dtype, layout, CAST)
    check_lists(layout, "mg.from_arrow", f"{type(obj).__name__}")
    if isinstance(obj, (pa.Table, pa.RecordBatch)):
        for field in obj.schema:
            check_type(field.type, f"column {field.name!r}", CAST, lists=False)
        found = [read(obj.column(i), f"column {name!r}") for i, name in enumerate(obj.schema.names)]
        return columns.side_by_side(found, obj.num_rows, dtype)
    if not isinstance(obj, (pa.Array, pa.ChunkedArray)):
        raise TypeError(
            "mg.from_arrow: obj must be a pyarrow Array, ChunkedArray, RecordBatch or Table, found "
            f"{type(obj).__name__}; convert it with pa.array(obj) or pa.table(obj)"
        )
    check_type(obj.type, "obj", CAST)
    return columns.one_column(read(obj, "obj"), dtype)


#: How to turn another type into numbers, in Arrow's words.
CAST = "cast it, as in array.cast(pa.float64())"


def check_lists(layout: torch.layout, function: str, found: str) -> None:
    """ValueError for the jagged layout where there are no lists."""
    if layout == torch.jagged:
        raise ValueError(
            f"{function}: layout=torch.jagged is for one array of lists of different lengths, found {found} without "
            "them; leave layout out"
        )


def check_type(type_: pa.DataType, place: str, cast: str, lists: bool = True) -> None:
    """Raise TypeError for a type without numbers: which column, what it holds, what to do."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if str(type_) in _DTYPES:
        return
    if kinds.is_fixed_size_list(type_) and lists:
        check_type(type_.value_type, f"{place}, inside its lists,", cast, lists=False)
        return
    if kinds.is_fixed_size_list(type_):
        remedy = "convert it alone: it has a dimension more than the other columns"
    elif has_lengths(type_) and "inside its lists" in place:
        remedy = "only one dimension of a tensor may be ragged; of inner lists of one size make pa.list_(type, size)"
    elif has_lengths(type_):
        remedy = "lists of different lengths are converted alone, not as a column among others"
    elif kinds.is_null(type_):
        remedy = f"it contains only nulls, and its type is unknown: {cast}"
    elif kinds.is_dictionary(type_):
        remedy = "use array.dictionary_decode() for its values, or array.indices for their numbers"
    elif kinds.is_temporal(type_):
        remedy = "express it as a number since some origin: array.cast(pa.int64()) counts its own unit"
    elif isinstance(type_, pa.BaseExtensionType):
        remedy = "use array.storage, if that holds numbers"
    elif kinds.is_decimal(type_):
        remedy = cast
    else:
        remedy = f"if it can be read as numbers, {cast}; encode categories first (array.dictionary_encode().indices)"
    raise TypeError(
        f"{place} must hold Booleans, integers or floating-point numbers, found {type_}; {remedy}"
    )


def read(array: pa.Array | pa.ChunkedArray, place: str) -> columns.Column:
    """Values and mask of an array whose type was checked."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks != 1:
            chunks = [_read_array(chunk) for chunk in array.chunks] or [_read_array(pa.array([], array.type))]
            values, masks = zip(*chunks, strict=True)
            return columns.Column(place, torch.cat(values), torch.cat(masks))
        array = array.chunk(0)
    numbers, known = _read_array(array)
    return columns.Column(place, numbers, known, is_lent=numbers.dtype != torch.bool)


def _read_array(array: pa.Array) -> tuple[Tensor, Tensor]:
    """Values, shared unless they are bits, and mask of one contiguous array."""
    import pyarrow as pa

    length, offset = len(array), array.offset
    validity = array.buffers()[0]
    known = (
        torch.ones((), dtype=torch.bool).expand(length)
        if validity is None
        else _bits(validity, offset, length)
    )
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        # .values is the whole child, which does not know of our offset; .flatten() would leave null lists out
        values, mask = _read_array(array.values.slice(offset * size, length * size))
        return values.reshape(length, size), mask.reshape(length, size) & known.unsqueeze(1)
    dtype = _DTYPES[str(array.type)]
    data = array.buffers()[1]
    if length == 0:
        return torch.empty(0, dtype=dtype), known
    if dtype == torch.bool:
        return _bits(data, offset, length), known
    # Arrow hands over arrays without nulls only; what is null, the mask knows already.
    return from_dlpack(pa.Array.from_buffers(array.type, length, [None, data], 0, offset)), known


def _bits(buffer: pa.Buffer, offset: int, length: int) -> Tensor:
    """``length`` bits of a bitmap from bit ``offset`` on, the lowest bit of a byte first."""
    import numpy as np

    first = offset // 8
    packed = np.frombuffer(buffer, np.uint8)[first : (offset + length + 7) // 8]
    unpacked = np.unpackbits(packed, bitorder="little")[offset - 8 * first :][:length]
    return torch.from_numpy(unpacked.view(np.bool_))


def to_arrow(x: MaskedTensor, names: Sequence[str] | None = None) -> pa.Array | pa.Table:
    """An Arrow array of a vector, a table of a matrix, lists of a jagged batch; what is unspecified is null.

    Args:
        x: MaskedTensor (n,) or (rows, columns), strided, or ``(B, T, *features)`` of layout ``torch.jagged``; real.
            bfloat16, which Arrow lacks, becomes float32.
        names: names of the columns of a table. None: "0", "1", …

    Returns:
        Array or Table of the corresponding type; of a jagged batch an array of B lists, features in lists of a fixed
        size inside. A specified NaN stays NaN.

    Zero copy:
        None, because Arrow's arrays never change while tensors may; what lay under the mask is left behind.
        Gradients do not travel.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        TypeError: ``x`` is not a MaskedTensor, has a sparse layout, or is complex.
        ValueError: it has no dimension or more than two (jagged: several batch dimensions, or features of size 0), or
            ``names`` do not fit.

    Example:
        >>> mg.interop.to_arrow(mg.from_nan(torch.tensor([1., float("nan")]))).to_pylist()
        [1.0, None]
    """
    function = "mg.interop.to_arrow"
    require("pyarrow", function)
    import pyarrow as pa

    if isinstance(x, MaskedTensor) and x.layout == torch.jagged:
        if names is not None:
            raise ValueError(
                f"{function}: names must be left out for a jagged tensor, whose sequences are one column"
            )
        return _list_array(x, function)
    x = columns.check_masked_tensor(x, function)
    columns.check_columns(x, names, function)
    values, missing = columns.entries_in_numpy(x, function)
    if values.ndim == 1:
        return _array(values, missing)
    arrays = [_array(values[:, i], missing[:, i]) for i in range(values.shape[1])]
    if not arrays:  # only a table that is cut from one with columns knows how many rows it has
        return pa.table({"": pa.nulls(len(values), pa.int8())}).select([])
    return pa.Table.from_arrays(arrays, names=list(names or map(str, range(len(arrays)))))


def _array(values: Any, missing: Any) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    # a contiguous column, and from_pandas=False: NaN is not null
    return pa.array(np.ascontiguousarray(values), mask=missing, from_pandas=False)


def _arrow_c_array(self: MaskedTensor, requested_schema: Any = None) -> Any:
    """A vector with nulls where it is unspecified, ``__arrow_c_array__`` of the Arrow PyCapsule interface."""
    if len(self.shape) != 1:
        raise UnsupportedOperationError(
            "MaskedTensor.__arrow_c_array__",
            f"an Arrow array is a vector, and this has shape {tuple(self.shape)}",
            "Use mg.interop.to_arrow(x), a table of a matrix, or mg.interop.to_polars(x).",
        )
    return to_arrow(self).__arrow_c_array__(requested_schema)


MaskedTensor.__arrow_c_array__ = _arrow_c_array  # type: ignore[attr-defined]
