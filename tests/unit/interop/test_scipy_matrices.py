"""SciPy: every format, stored zeros, duplicates, and damaged indices."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import maskgrad as mg
from tests.poison import assert_entries, poisoned

LAYOUTS = {"csr": torch.sparse_csr, "csc": torch.sparse_csc, "bsr": torch.sparse_bsr}
FORMATS = ("coo", "csr", "csc", "bsr", "dia", "lil", "dok")
DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "int64",
    "float32",
    "float64",
    "complex64",
    "complex128",
)


def matrix_of(form: str, dtype: str = "float64", legacy: bool = False) -> sp.sparray:
    """[[5, 0, --, --], [--, 0, 7, --], [--, --, 8, 9]] with its zeros stored; bsr in blocks of one entry."""
    rows, columns = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 2, 2, 3])
    kind = sp.coo_matrix if legacy else sp.coo_array
    coo = kind((np.array([5, 0, 0, 7, 8, 9]).astype(dtype), (rows, columns)), shape=(3, 4))
    if form == "dia":
        data = np.array([[5, 0, 8, 66], [55, 0, 7, 9]]).astype(dtype)  # 66 and 55 lie outside the matrix
        return (sp.dia_matrix if legacy else sp.dia_array)((data, np.array([0, 1])), shape=(3, 4))
    if form == "dok":  # .todok() goes through a dictionary and keeps zeros
        dok = coo.todok()
        assert dok.nnz == 6
        return dok
    return coo.tobsr((1, 1)) if form == "bsr" else coo.asformat(form)


EXPECTED = [[5, 0, None, None], [None, 0, 7, None], [None, None, 8, 9]]


@pytest.mark.parametrize("legacy", [False, True], ids=["array", "matrix"])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_keeps_stored_zeros(form: str, legacy: bool) -> None:
    x = mg.from_scipy(matrix_of(form, legacy=legacy))
    assert x.layout == LAYOUTS.get(form, torch.sparse_coo)
    assert x.num_specified().item() == 6
    assert_entries(x.to_dense(), EXPECTED, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMATS)
def test_every_dtype_there_and_back(form: str, dtype: str) -> None:
    matrix = matrix_of(form, dtype)
    x = mg.from_scipy(matrix)
    assert x.dtype == getattr(torch, dtype)
    back = mg.interop.to_scipy(x)
    assert back.format == (form if form in LAYOUTS else "coo")
    assert back.dtype == matrix.dtype
    assert back.nnz == 6
    assert (back.toarray() == matrix.toarray()).all()
    assert mg.from_scipy(back)._pattern.mask.equal(x._pattern.mask)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 3)])
def test_nothing_stored(form: str, shape: tuple[int, int]) -> None:
    if form == "bsr" and 0 in shape:
        matrix = sp.bsr_array(shape, blocksize=(1, 1))
    else:
        matrix = sp.coo_array(shape).asformat(form)
    x = mg.from_scipy(matrix)
    assert x.shape == shape
    assert x.num_specified().item() == 0
    assert mg.interop.to_scipy(x).shape == shape


def test_duplicates_are_added_up() -> None:
    coo = sp.coo_array((np.array([1.0, 2.0, 4.0, -4.0]), ([1, 0, 1, 1], [1, 2, 1, 0])), shape=(2, 3))
    assert_entries(mg.from_scipy(coo).to_dense(), [[None, None, 2.0], [-4.0, 5.0, None]])
    csr = sp.csr_array((np.array([1.0, 4.0, 7.0]), np.array([2, 2, 0]), np.array([0, 3, 3])), shape=(2, 3))
    before = csr.data.tolist(), csr.indices.tolist()
    assert_entries(mg.from_scipy(csr).to_dense(), [[7.0, None, 5.0], [None, None, None]])
    assert before == (csr.data.tolist(), csr.indices.tolist())  # only a copy was sorted and merged
    zero = sp.coo_array((np.array([3, -3]), ([0, 0], [0, 0])), shape=(1, 2))
    assert_entries(
        mg.from_scipy(zero).to_dense(), [[0, None]], torch.int64
    )  # a cancelled sum is an entry still
    flags = sp.coo_array((np.array([True, True]), ([0, 0], [0, 0])), shape=(1, 2))
    assert_entries(mg.from_scipy(flags).to_dense(), [[True, None]], torch.bool)


def test_blocks_are_specified_as_a_whole() -> None:
    bsr = sp.bsr_array(
        (np.array([[[1.0, 0.0], [0.0, 2.0]]]), np.array([1]), np.array([0, 1, 1])), shape=(4, 4)
    )
    x = mg.from_scipy(bsr)
    assert x.layout == torch.sparse_bsr
    assert_entries(x.to_dense()[:2, 2:], [[1.0, 0.0], [0.0, 2.0]])
    assert x.num_specified().item() == 4
    assert mg.interop.to_scipy(x).blocksize == (2, 2)


@pytest.mark.parametrize("form", ["coo", "csr"])
def test_vectors(form: str) -> None:
    vector = sp.coo_array((np.array([0.0, 4.0]), (np.array([3, 1]),)), shape=(5,)).asformat(form)
    x = mg.from_scipy(vector)
    assert_entries(x.to_dense(), [None, 4.0, None, 0.0, None])
    assert mg.interop.to_scipy(x).shape == (5,)


def test_canonical_memory_is_shared_and_room_behind_is_not_read() -> None:
    csr = sp.csr_array((np.array([1.0, 2.0]), np.array([0, 1]), np.array([0, 1, 2])), shape=(2, 2))
    assert mg.from_scipy(csr)._values.data_ptr() == csr.data.ctypes.data
    csr.data = np.array([1.0, 2.0, np.nan])
    csr.indices = np.array([0, 1, 77], dtype=csr.indices.dtype)
    assert_entries(mg.from_scipy(csr).to_dense(), [[1.0, None], [None, 2.0]])


def test_from_a_mask() -> None:
    x = poisoned([[0.0, None, 3.0], [None, None, None]])
    matrix = mg.interop.to_scipy(x)
    assert matrix.format == "coo"
    assert matrix.has_canonical_format
    assert matrix.tocsr().data.tolist() == [0.0, 3.0]
    assert_entries(mg.from_scipy(matrix).to_dense(), x.tolist())
    matrix.data[:] = 9
    assert_entries(x, [[0.0, None, 3.0], [None, None, None]])


def test_damaged_indices_are_refused() -> None:
    csr = matrix_of("csr")
    csr.indices = csr.indices.copy()
    csr.indices[0] = 40
    with pytest.raises(IndexError, match=r"40"):
        mg.from_scipy(csr)
    csr = matrix_of("csr")
    csr.indptr = np.array([0, 2, 1, 6], dtype=csr.indptr.dtype)
    with pytest.raises(ValueError, match=r"indptr of matrix must ascend from 0 to at most 6.*check_format"):
        mg.from_scipy(csr)
    csr.indptr = np.array([0, 2, 4, 600], dtype=csr.indptr.dtype)
    with pytest.raises(ValueError, match=r"indptr of matrix"):
        mg.from_scipy(csr)
    coo = matrix_of("coo")
    coo.coords = (coo.coords[0], np.array([0, 1, 1, 2, 2, 40]))
    with pytest.raises(ValueError, match=r"index 40 exceeds"):  # SciPy's own words
        mg.from_scipy(coo)


def test_other_objects_and_layouts_are_refused() -> None:
    with pytest.raises(TypeError, match=r"matrix must be a sparse matrix or array of scipy, found ndarray"):
        mg.from_scipy(np.eye(2))
    with pytest.raises(TypeError, match=r"found (float128|longdouble|float96); use matrix.astype"):
        mg.from_scipy(sp.csr_array(np.eye(2, dtype=np.longdouble)))
    with pytest.raises(TypeError, match=r"x must be a MaskedTensor, found ndarray"):
        mg.interop.to_scipy(np.eye(2))
    with pytest.raises(ValueError, match=r"one dimension or more, found a scalar"):
        mg.interop.to_scipy(mg.masked(torch.ones(())))
    x = mg.masked(torch.ones(2, 2))
    with pytest.raises(
        TypeError, match=r"no format like torch.sparse_bsc; use x.to_sparse\(layout=torch.sparse_bsr\)"
    ):
        mg.interop.to_scipy(x.to_sparse(torch.sparse_bsc, blocksize=(1, 1)))
    hybrid = mg.from_sparse(
        torch.sparse_coo_tensor([[0, 1]], torch.ones(2, 3), (2, 3), check_invariants=True)
    )
    with pytest.raises(ValueError, match=r"without batch or dense dimensions"):
        mg.interop.to_scipy(hybrid)


def test_a_matrix_has_memory_of_its_own() -> None:
    x = poisoned([[1.0, None], [None, 2.0]]).to_sparse(layout=torch.sparse_csr)
    matrix = mg.interop.to_scipy(x)
    matrix.data[:] = 9
    assert_entries(x.to_dense(), [[1.0, None], [None, 2.0]])
