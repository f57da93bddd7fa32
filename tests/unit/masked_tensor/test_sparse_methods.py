"""The methods of torch's sparse tensors, beside torch's own, with garbage under the mask."""

import math

import pytest
import torch
from torch import Tensor

import maskgrad as mg

LAYOUTS = {
    "csr": (torch.sparse_csr, {}),
    "csc": (torch.sparse_csc, {}),
    "bsr": (torch.sparse_bsr, {"blocksize": (2, 1)}),
    "bsc": (torch.sparse_bsc, {"blocksize": (2, 1)}),
    "coo": (torch.sparse_coo, {}),
}
READABLE = {
    (torch.sparse_coo, "indices"),
    *(
        (layout, part)
        for layout in (torch.sparse_csr, torch.sparse_bsr)
        for part in ("crow_indices", "col_indices")
    ),
    *(
        (layout, part)
        for layout in (torch.sparse_csc, torch.sparse_bsc)
        for part in ("ccol_indices", "row_indices")
    ),
}


def example(*dense: int) -> tuple[Tensor, mg.MaskedTensor]:
    """Zeros where nothing is specified, and the same with NaN there."""
    mask = torch.tensor([[1, 0, 1], [1, 0, 1], [0, 0, 0], [0, 0, 0]]).bool()
    mask = mask.reshape(4, 3, *(1,) * len(dense)).expand(4, 3, *dense)
    values = torch.arange(1.0, 1 + 12 * math.prod(dense)).reshape(4, 3, *dense)
    return torch.where(mask, values, 0), mg.masked(torch.where(mask, values, math.nan), mask)


@pytest.mark.parametrize("dense", [(), (2,), (2, 3)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_as_torch(name: str, dense: tuple[int, ...]) -> None:
    layout, options = LAYOUTS[name]
    if name == "coo" and dense:
        return  # below
    plain, x = example(*dense)
    expected = plain.to_sparse(layout=layout, dense_dim=None if name == "coo" else len(dense), **options)
    method = getattr(x, f"to_sparse_{name}")
    for found in (
        method(*options.values(), dense_dim=len(dense)),
        x.to_sparse(layout=layout, dense_dim=len(dense), **options),
    ):
        assert found.layout == layout
        assert (found.sparse_dim(), found.dense_dim()) == (expected.sparse_dim(), expected.dense_dim())
        assert found._nnz() == expected._nnz()
        assert found.values().equal(expected.values())
        for part in ("indices", "crow_indices", "col_indices", "ccol_indices", "row_indices"):
            if (layout, part) in READABLE:
                assert getattr(found, part)().equal(getattr(expected, part)())
            else:
                with pytest.raises(RuntimeError, match=rf"x\.{part}\(\) needs layout .*x\.to_sparse\("):
                    getattr(found, part)()
        assert torch.equal(found.to_dense().mask, x.mask)
        assert torch.equal(found.to_dense().filled(0.0), plain)


@pytest.mark.parametrize("listed", [1, 2, 3, 4])
def test_how_many_dimensions_are_listed(listed: int) -> None:
    mask = torch.tensor([1, 0, 1, 1]).bool().reshape(4, 1, 1, 1).expand(4, 2, 3, 2)
    values = torch.arange(1.0, 49).reshape(4, 2, 3, 2)
    x = mg.masked(torch.where(mask, values, math.nan), mask)
    expected = torch.where(mask, values, 0).to_sparse(listed)
    for source in (x, x.to_sparse(), x.to_sparse(2)):
        found = source.to_sparse(listed)
        assert found.indices().equal(expected.indices())
        assert found.values().equal(expected.values())
        assert (found.sparse_dim(), found.dense_dim()) == (listed, 4 - listed)
        assert found.coalesce() is found
        assert found.is_coalesced()
        assert found.to_sparse(listed) is found
        assert source.to_sparse(dense_dim=4 - listed).values().equal(expected.values())


def test_gradients_pass_entry_by_entry() -> None:
    leaf = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True], [False], [True]])
    weight = torch.randn(2, 2, dtype=torch.float64)

    def values(t: Tensor) -> Tensor:
        return mg.masked(t, mask).to_sparse(1).values() * weight

    assert torch.autograd.gradcheck(values, (leaf,))
    values(leaf).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.equal(torch.stack([weight[0], torch.zeros(2), weight[1]]))


def test_nothing_is_stored() -> None:
    for shape in ((0, 3), (3, 0), (2, 3)):
        found = mg.masked(torch.full(shape, math.nan), torch.zeros(shape, dtype=torch.bool)).to_sparse(1)
        assert found.shape == shape
        assert found._nnz() == 0
        assert found.values().shape == (0, shape[1])


def test_what_does_not_fit_is_refused() -> None:
    _, x = example()
    with pytest.raises(ValueError, match=r"partially specified, the first at \(0,\); use x.to_sparse\(\)"):
        x.to_sparse(1)
    for wrong in (0, 3, -1):
        with pytest.raises(ValueError, match="sparse_dim must be from 1 to 2"):
            x.to_sparse(wrong)
    with pytest.raises(ValueError, match="dense_dim must be from 0 to 0"):
        x.to_sparse_csr(dense_dim=1)
    with pytest.raises(ValueError, match="pass dense_dim= instead"):
        x.to_sparse(2, layout=torch.sparse_csr)
    with pytest.raises(ValueError, match="not both"):
        x.to_sparse(2, dense_dim=0)
    with pytest.raises(RuntimeError, match=r"entries .* are never stored twice: use x itself"):
        x.coalesce()
    with pytest.raises(RuntimeError, match=r"or x\.compressed\(\)"):
        x.values()
    assert (x.sparse_dim(), x.dense_dim()) == (0, 2)
