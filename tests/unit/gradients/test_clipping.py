"""Norms and clipping of dense and sparse gradients together: duplicates merged first, sparse ones stay sparse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg

inf = float("inf")


def parameters() -> list[nn.Parameter]:
    """One dense gradient, one sparse with duplicates, one parameter without."""
    ps = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(5, 2)), nn.Parameter(torch.zeros(1))]
    ps[0].grad = torch.randn(2, 3)
    ps[1].grad = torch.sparse_coo_tensor([[1, 3, 1]], torch.randn(3, 2), (5, 2))
    return ps


def dense(ps: list[nn.Parameter]) -> list[nn.Parameter]:
    copies = [nn.Parameter(p.detach().clone()) for p in ps]
    for copy, p in zip(copies, ps, strict=True):
        copy.grad = None if p.grad is None else p.grad.to_dense().clone()
    return copies


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, inf])
@pytest.mark.parametrize("limit", [0.1, 100.0])
def test_the_norm_and_the_clipped_gradients_are_torchs(order: float, limit: float) -> None:
    ps = parameters()
    plain = dense(ps)
    expected = torch.nn.utils.clip_grad_norm_(plain, limit, order)
    torch.testing.assert_close(mg.grad_norm(ps, order), expected)
    torch.testing.assert_close(mg.clip_grad_norm_(ps, limit, order), expected)
    for p, q in zip(ps, plain, strict=True):
        if p.grad is not None:
            torch.testing.assert_close(p.grad.to_dense(), q.grad)
    assert ps[1].grad is not None
    assert ps[1].grad.is_sparse
    assert ps[2].grad is None


def test_values_are_limited_after_duplicates_are_merged() -> None:
    ps = parameters()
    plain = dense(ps)
    mg.clip_grad_value_(ps, 0.5)
    torch.nn.utils.clip_grad_value_(plain, 0.5)
    for p, q in zip(ps[:2], plain[:2], strict=True):
        assert p.grad is not None
        assert torch.equal(p.grad.to_dense(), q.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_merged_and_squared_in_float32(dtype: torch.dtype) -> None:
    p = nn.Parameter(torch.zeros(2, 1, dtype=dtype))
    p.grad = torch.sparse_coo_tensor(
        torch.zeros(1, 4096, dtype=torch.long), torch.ones(4096, 1, dtype=dtype), (2, 1)
    )
    assert mg.grad_norm(p).item() == 4096.0
    assert mg.grad_norm(p).dtype == torch.float32


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
def test_gradients_of_sparse_parameters(layout: Any) -> None:
    p = torch.eye(3).to_sparse(layout=layout).requires_grad_()
    p.grad = (torch.eye(3) * 2).to_sparse(layout=layout)
    assert mg.clip_grad_norm_([p], 1.0).item() == pytest.approx(12**0.5)
    assert p.grad.layout == layout
    assert mg.grad_norm(p).item() == pytest.approx(1.0)


def test_nothing_to_clip() -> None:
    p = nn.Parameter(torch.zeros(3, 1))
    assert mg.grad_norm([p]).item() == 0.0
    p.grad = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.long), torch.empty(0, 1), (3, 1))
    assert mg.clip_grad_norm_([p], 1.0).item() == 0.0
    mg.clip_grad_value_([p], 1.0)
    assert p.grad._nnz() == 0


@pytest.mark.parametrize("bad", [inf, float("nan")])
def test_a_norm_that_is_not_finite_is_refused_on_request_and_nothing_is_changed(bad: float) -> None:
    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([1.0, bad])
    with pytest.raises(RuntimeError, match="non-finite"):
        mg.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    assert p.grad[0] == 1.0


def test_bad_arguments_are_refused() -> None:
    ps = parameters()
    before = [None if p.grad is None else p.grad.to_dense() for p in ps]
    for call, words in (
        (lambda: mg.clip_grad_norm_(ps, -1.0), "max_norm must be at least 0"),
        (lambda: mg.clip_grad_norm_(ps, 1.0, 0.0), "norm_type must be positive"),
        (lambda: mg.clip_grad_value_(ps, float("nan")), "clip_value must be at least 0"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="parameters must be tensors"):
        mg.grad_norm([1.0])  # type: ignore[list-item]
    outside: Tensor = torch.sparse_coo_tensor([[7]], torch.ones(1, 1), (9, 1))
    ps[2].grad = None
    p = nn.Parameter(torch.zeros(9, 1))
    p.grad = outside
    assert mg.grad_norm(p).item() == 1.0
    for p, old in zip(ps, before, strict=True):
        if old is not None:
            assert torch.equal(p.grad.to_dense(), old)  # type: ignore[union-attr]
