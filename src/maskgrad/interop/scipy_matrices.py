"""SciPy's sparse matrices and arrays, of every format; stored entries are specified, including stored zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor, from_sparse
from maskgrad.masked_tensor.numpy_memory import holds_numbers, in_numpy, tensor_of
from maskgrad.optional_packages import require

if TYPE_CHECKING:
    import numpy as np
    import scipy.sparse as sp

__all__ = ["from_scipy", "to_scipy"]

_COMPRESSED = {"csr": torch.sparse_csr_tensor, "csc": torch.sparse_csc_tensor, "bsr": torch.sparse_bsr_tensor}


def from_scipy(matrix: sp.sparray | sp.spmatrix) -> MaskedTensor:
    """Convert a SciPy sparse matrix or array: its stored entries are specified, including stored zeros.

    Args:
        matrix: any format, any number of dimensions. Duplicate entries are summed, as in SciPy, by its own
            ``sum_duplicates`` (Booleans: or).

    Returns:
        MaskedTensor of the same shape and dtype, never densified. Its layout is CSR, CSC or BSR for the formats of
        that name (for BSR whole blocks are specified), and COO for coo, dia, lil, dok and for anything that is not
        two-dimensional. In the dia format all entries of stored diagonals inside the matrix are specified.

    Zero copy:
        CSR, CSC and BSR without duplicates and with sorted indices share their memory.

    Raises:
        MissingDependencyError: scipy is not installed.
        TypeError: ``matrix`` is not sparse, or has a dtype that torch lacks (longdouble).
        IndexError: an index lies outside its shape (a ValueError where SciPy sees it first).
        ValueError: its indices contradict each other.

    Example:
        >>> import scipy.sparse as sp
        >>> x = mg.from_scipy(sp.coo_array(([5., 0.], ([0, 1], [1, 0])), shape=(2, 2)))
        >>> x.to_dense()
        masked([[--, 5.],
                [0., --]], dtype=torch.float64)
    """
    function = "mg.from_scipy"
    require("scipy", function)
    import scipy.sparse as sp

    if not sp.issparse(matrix):
        raise TypeError(
            f"{function}: matrix must be a sparse matrix or array of scipy, found {type(matrix).__name__}; "
            "use mg.masked or mg.from_numpy for dense data"
        )
    if not holds_numbers(matrix.dtype):
        raise TypeError(
            f"{function}: matrix must have a dtype of torch, found {matrix.dtype}; use matrix.astype('float64')"
        )
    return from_sparse(
        _compressed(matrix) if matrix.ndim == 2 and matrix.format in _COMPRESSED else _coordinates(matrix)
    )


def _compressed(matrix: Any) -> Tensor:
    """CSR, CSC, BSR as a torch tensor of that layout; indices sorted, without duplicates."""
    import numpy as np

    pointers, room = matrix.indptr, len(matrix.indices)
    # before SciPy's compiled code uses them
    if pointers[0] != 0 or pointers[-1] > room or np.any(pointers[1:] < pointers[:-1]):
        raise ValueError(
            f"mg.from_scipy: indptr of matrix must ascend from 0 to at most {room}, the number of its indices; "
            "matrix.check_format(full_check=True) checks it"
        )
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    stored = int(matrix.indptr[-1])  # SciPy allows spare room after them
    return _COMPRESSED[matrix.format](
        tensor_of(matrix.indptr),
        tensor_of(matrix.indices[:stored]),
        tensor_of(matrix.data[:stored]),
        size=matrix.shape,
        check_invariants=False,  # from_sparse looks
    )


def _coordinates(matrix: Any) -> Tensor:
    """Any other format as a COO tensor; indices in row-major order, without duplicates."""
    import numpy as np

    # tocoo() of a dia matrix drops stored zeros
    matrix = _diagonals(matrix) if matrix.format == "dia" else matrix.tocoo(copy=True)
    matrix.sum_duplicates()
    order = np.lexsort(matrix.coords[::-1])
    return torch.sparse_coo_tensor(
        tensor_of(np.stack(matrix.coords)[:, order].astype(np.int64)),
        tensor_of(matrix.data[order]),
        matrix.shape,
        is_coalesced=True,
        check_invariants=False,  # from_sparse looks
    )


def _diagonals(matrix: Any) -> Any:
    """The entries on the stored diagonals that lie inside the matrix, in coordinates."""
    import numpy as np
    import scipy.sparse as sp

    columns = np.arange(matrix.data.shape[1])
    rows = columns - matrix.offsets[:, None]  # data[k, j] is at (j - offsets[k], j)
    inside = (rows >= 0) & (rows < matrix.shape[0]) & (columns < matrix.shape[1])
    at = rows[inside], np.broadcast_to(columns, rows.shape)[inside]
    return sp.coo_array((matrix.data[inside], at), shape=matrix.shape)


def to_scipy(x: MaskedTensor) -> sp.sparray:
    """Return a SciPy sparse array that stores the specified entries of ``x``, including zeros.

    Args:
        x: MaskedTensor of one dimension or more, dense or sparse. Half precision, which SciPy lacks, becomes float32.

    Returns:
        ``csr_array``, ``csc_array`` or ``bsr_array`` for a MaskedTensor of that layout, else ``coo_array``, with
        indices in row-major order. For other formats call ``.asformat("lil")`` and so on.

    Zero copy:
        None; the result is a copy, without gradients.

    Raises:
        MissingDependencyError: scipy is not installed.
        TypeError: ``x`` is not a MaskedTensor, or has the layout BSC, which SciPy lacks.
        ValueError: ``x`` is 0-dim, or its sparse layout has batch or dense dimensions.

    Example:
        >>> matrix = mg.interop.to_scipy(mg.from_nan(torch.tensor([[0., float("nan")], [float("nan"), 2.]])))
        >>> matrix.nnz, matrix.tocsr().data.tolist()
        (2, [0.0, 2.0])
    """
    function = "mg.interop.to_scipy"
    require("scipy", function)
    import scipy.sparse as sp

    if not isinstance(x, MaskedTensor):
        raise TypeError(
            f"{function}: x must be a MaskedTensor, found {type(x).__name__}; wrap it in mg.masked(x)"
        )
    shape = tuple(x.shape)
    if not shape:
        raise ValueError(f"{function}: x must have one dimension or more, found a scalar; use x.reshape(1)")
    if x.layout == torch.strided:
        return _coo(x.compressed(), x.mask.nonzero().T, shape)
    plain = x.to_sparse_tensor().detach()
    if plain.dense_dim() or (plain.layout != torch.sparse_coo and plain.ndim != 2):
        raise ValueError(
            f"{function}: x must be a matrix without batch or dense dimensions in its layout {plain.layout}, found "
            f"shape {shape} with {plain.dense_dim()} dense dimensions; convert its slices, or use x.to_dense()"
        )
    if plain.layout == torch.sparse_coo:
        return _coo(plain.values(), plain.indices(), shape)
    if plain.layout == torch.sparse_csc:
        parts = plain.values(), plain.row_indices(), plain.ccol_indices()
        return sp.csc_array(tuple(map(_numbers, parts)), shape=shape)
    if plain.layout == torch.sparse_bsc:
        raise TypeError(
            f"{function}: scipy has no format like {plain.layout}; use x.to_sparse(layout=torch.sparse_bsr)"
        )
    parts = plain.values(), plain.col_indices(), plain.crow_indices()
    kind = sp.csr_array if plain.layout == torch.sparse_csr else sp.bsr_array
    return kind(tuple(map(_numbers, parts)), shape=shape)


def _coo(values: Tensor, indices: Tensor, shape: tuple[int, ...]) -> sp.coo_array:
    """Coordinates (s, n) in row-major order, without duplicates."""
    import scipy.sparse as sp

    result = sp.coo_array((_numbers(values), tuple(map(_numbers, indices))), shape=shape)
    result.has_canonical_format = True
    return result


def _numbers(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A NumPy copy, in a dtype that SciPy supports."""
    return in_numpy(tensor).copy()
