"""Large look-ups in one copy: values, gradients and errors are those of ``F.embedding(sparse=True)``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from maskgrad import kernels


@pytest.fixture(autouse=True)
def _of_any_size() -> Iterator[None]:
    """The way of large look-ups, taken by small ones."""
    with mg.use_kernels("cpu"):
        yield


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("shape", [(9000,), (90, 100), (0,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_sparse_gradient(padding: int | None, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    ours = mg.nn.Embedding(50, 32, padding_idx=padding, dtype=dtype)
    weight = ours.weight.detach().clone().requires_grad_()
    indices = torch.randint(0, 50, shape)
    assert kernels.lookup_rows.is_compiled_for(ours.weight, indices)
    found, expected = ours(indices), F.embedding(indices, weight, padding, sparse=True)
    assert torch.equal(found, expected)
    cotangent = torch.randn(*shape, 32, dtype=dtype)
    found.backward(cotangent)
    expected.backward(cotangent)
    assert ours.weight.grad is not None
    assert weight.grad is not None
    assert ours.weight.grad.layout == torch.sparse_coo
    assert torch.equal(ours.weight.grad._indices(), weight.grad._indices())
    assert torch.equal(ours.weight.grad._values(), weight.grad._values())


def test_second_derivatives_reach_the_cotangent() -> None:
    table = mg.nn.Embedding(20, 64, dtype=torch.float64)
    indices = torch.randint(0, 20, (5000,))
    cotangent = torch.randn(5000, 64, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(table(indices), table.weight, cotangent, create_graph=True)
    weights = torch.randn(20, 64, dtype=torch.float64)
    (found,) = torch.autograd.grad((grad.to_dense() * weights).sum(), cotangent)
    torch.testing.assert_close(found, weights[indices])


def test_an_index_outside_the_table() -> None:
    table = mg.nn.Embedding(20, 64)
    with pytest.raises(IndexError, match=r"must lie in \[0, 20\)"):
        table(torch.full((5000,), 20))


def test_transforms_take_the_other_way() -> None:
    table = mg.nn.Embedding(20, 64)
    indices = torch.randint(0, 20, (2, 5000))
    found = torch.vmap(lambda i: F.embedding(i, table.weight))(indices)
    assert torch.equal(torch.vmap(table)(indices), found)
