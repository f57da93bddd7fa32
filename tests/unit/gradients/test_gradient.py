"""Reading gradients: every storage, every split into sparse and dense dimensions, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad.gradients.gradient import Gradient, check_fits, read
from maskgrad.optim.engine import apply_update
from maskgrad.optim.rule import Update
from tests.unit.optim.kinds import coo, every_kind


def assign(param: Tensor, grad: Tensor) -> None:
    """A rule that writes the gradient into the parameter: what was read, and where."""
    param.copy_(grad)


def read_gradient(param: Tensor, grad: Any, name: str) -> Gradient:
    check_fits(param, grad, f"gradient of {name}")
    return read(grad, f"gradient of {name}")


def written(grad: Any, shape: tuple[int, ...]) -> Tensor:
    param = torch.full(shape, -7.0)
    apply_update(Update(assign), param, read_gradient(param, grad, "p"), [])
    return param


@every_kind
def test_every_kind_writes_its_entries_where_they_belong(kind: Callable[[Tensor], Any]) -> None:
    dense = torch.tensor([[1.0, 2, 0, 0], [0, 0, 3, 4], [5, 6, 7, 8], [0, 0, 0, 0]])
    assert torch.equal(written(kind(dense), (4, 4)), torch.where(dense != 0, dense, -7.0))


@pytest.mark.parametrize("sparse_dim", [1, 2, 3])
def test_every_split_into_sparse_and_dense_dimensions(sparse_dim: int) -> None:
    dense = torch.where(torch.rand(3, 4, 5) < 0.3, torch.randn(3, 4, 5), 0.0)
    dense[1] = 0
    t = dense.to_sparse(sparse_dim)
    stored = (dense != 0).reshape(*dense.shape[:sparse_dim], -1).any(-1)
    stored = stored.reshape(*stored.shape, *[1] * (3 - sparse_dim))
    shuffled = torch.randperm(t.values().shape[0])
    mixed = torch.sparse_coo_tensor(
        t.indices()[:, shuffled], t.values()[shuffled], (3, 4, 5), check_invariants=True
    )
    for grad in (t, mixed):
        assert torch.equal(written(grad, (3, 4, 5)), torch.where(stored, dense, -7.0))


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("dense_shape", [(), (3,)])
def test_compressed_layouts_with_batches_and_dense_dimensions(
    layout: torch.layout, batch: tuple[int, ...], dense_shape: tuple[int, ...]
) -> None:
    blocks = torch.tensor([[1, 0, 0], [0, 0, 1]]).bool().repeat_interleave(2, 0).repeat_interleave(2, 1)
    pattern = blocks.reshape(*[1] * len(batch), 4, 6, *[1] * len(dense_shape))
    dense = torch.where(pattern, torch.randn(*batch, 4, 6, *dense_shape).add(10), 0)
    blocksize = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    t = dense.to_sparse(layout=layout, blocksize=blocksize, dense_dim=len(dense_shape))
    assert t.layout is layout
    assert torch.equal(written(t, tuple(dense.shape)), torch.where(pattern, dense, -7.0))


def csr(pointer: list[int], plain: list[int]) -> Tensor:
    parts = torch.tensor(pointer), torch.tensor(plain), torch.ones(len(plain))
    return torch.sparse_csr_tensor(*parts, (4, 2), check_invariants=False)


JAGGED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


@pytest.mark.parametrize(
    ("grad", "error", "words"),
    [
        ("text", TypeError, "gradient of p must be a tensor or a MaskedTensor, got str"),
        (torch.ones(3, 2), ValueError, r"of p has shape \(3, 2\), but the parameter has shape \(4, 2\)"),
        (coo([[0]], torch.ones(1, 2), (5, 2)), ValueError, r"has shape \(5, 2\)"),
        (torch.ones(4, 2, dtype=torch.int64), TypeError, r"has dtype torch\.int64"),
        (torch.ones(4, 2, dtype=torch.bool), TypeError, r"has dtype torch\.bool"),
        (torch.ones(4, 2, dtype=torch.complex64), TypeError, r"has dtype torch\.complex64"),
        (torch.ones(4, 2, device="meta"), ValueError, "is on meta, but the parameter is on cpu"),
        (coo([[0, 9, 1]], torch.ones(3, 2), (4, 2)), IndexError, "index 9 of entry 1 is outside the size 4"),
        (coo([[0, -1]], torch.ones(2, 2), (4, 2)), IndexError, "index -1 of entry 1 is outside the size 4"),
        (coo([[0, 1], [1, 2]], [1.0, 1.0], (4, 2)), IndexError, "dimension 1: index 2 of entry 1"),
        (csr([0, 2, 1, 1, 1], [0, 1]), ValueError, "must ascend from 0 to the number of stored positions, 2"),
        (csr([1, 1, 2, 2, 2], [0, 1]), ValueError, "must ascend from 0 to the number of stored positions, 2"),
        (csr([0, 1, 1, 1, 1], [0, 1]), ValueError, "must ascend from 0 to the number of stored positions, 2"),
        (csr([0, 1, 2, 2, 2], [0, 5]), IndexError, "positions must lie between 0 and 1, found index 5"),
        (JAGGED, TypeError, r"has layout torch\.jagged; expected a MaskedTensor or one of"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(grad: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_gradient(grad if grad is JAGGED else torch.zeros(4, 2), grad, "p")
