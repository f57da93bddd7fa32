"""Norms and clipping of dense and sparse gradients together: duplicates merged first, sparse ones stay sparse."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg

inf, nan = float("inf"), float("nan")


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


@pytest.mark.parametrize("order", [0.5, 1.0, 2.0, 3.0, inf])
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
        (lambda: mg.clip_grad_norm_(ps, 1.0, float("nan")), "norm_type must be a number or inf"),
        (lambda: mg.clip_grad_norm_(ps, float("nan")), "max_norm must be at least 0"),
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


@pytest.mark.parametrize("order", [-inf, -1.0, 0.0, 0.5, 1.0, 2.0, 7.0, inf])
@pytest.mark.parametrize("foreach", [None, True, False])
def test_of_dense_gradients_every_order_is_torchs(order: float, foreach: bool | None) -> None:
    ps = [nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(4, dtype=torch.float64))]
    for p in ps:
        p.grad = torch.randn_like(p)
    ours, theirs = deepcopy(ps), deepcopy(ps)
    for copies in (ours, theirs):
        for p, q in zip(copies, ps, strict=True):
            p.grad = q.grad.clone()  # type: ignore[union-attr]
    expected = torch.nn.utils.clip_grad_norm_(theirs, 0.5, order, foreach=foreach)
    norm = mg.grad_norm(ours, order, foreach=foreach)
    assert norm.dtype == expected.dtype
    assert torch.equal(norm, expected)
    kept = [p.grad for p in ours]
    assert torch.equal(mg.clip_grad_norm_(ours, 0.5, order, foreach=foreach), expected)
    for p, q, grad in zip(ours, theirs, kept, strict=True):
        assert p.grad is grad
        assert torch.equal(p.grad, q.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [-inf, -1.0, 0.0])
def test_what_is_unspecified_takes_no_part_in_orders_that_look_for_small_entries(order: float) -> None:
    p, q = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2, 2))
    mask = torch.tensor([[True, False], [False, True]])
    mg.attach_gradient(p, mg.masked(torch.tensor([[2.0, nan], [inf, 3.0]]), mask))
    mg.attach_gradient(q, torch.tensor([[2.0, 0.0], [0.0, 3.0]]).to_sparse_csr())
    expected = torch.nn.utils.get_total_norm([torch.tensor([2.0, 3.0])], order)
    torch.testing.assert_close(mg.grad_norm(p, order), expected)
    torch.testing.assert_close(mg.grad_norm(q, order), expected)


KINDS: dict[str, Callable[[Tensor], Tensor | mg.MaskedTensor]] = {
    "csr": Tensor.to_sparse_csr,
    "csc": Tensor.to_sparse_csc,
    "bsr": lambda d: d.to_sparse_bsr((1, 2)),
    "bsc": lambda d: d.to_sparse_bsc((1, 2)),
    "masked": lambda d: mg.masked(torch.where(d != 0, d, nan), d != 0),
    "masked coo": lambda d: mg.masked(torch.where(d != 0, d, nan), d != 0).to_sparse(),
    "masked csr": lambda d: mg.masked(torch.where(d != 0, d, nan), d != 0).to_sparse(torch.sparse_csr),
    "masked bsr": lambda d: mg.from_sparse(d.to_sparse_bsr((1, 2))),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("order", [1.0, 2.0, inf])
def test_attached_gradients_are_measured_and_clipped_and_stay_of_their_kind(kind: Any, order: float) -> None:
    dense_gradient = torch.tensor([[0.0, 3.0, 0.0, 0.0], [-4.0, 0.0, 0.0, 2.0]])
    p, q = nn.Parameter(torch.zeros(2, 4)), nn.Parameter(torch.zeros(3))
    plain_p, plain_q = nn.Parameter(torch.zeros(2, 4)), nn.Parameter(torch.zeros(3))
    q.grad, plain_q.grad = torch.ones(3), torch.ones(3)
    plain_p.grad = dense_gradient.clone()
    attached = kind(dense_gradient)
    mg.attach_gradient(p, attached)
    expected = torch.nn.utils.clip_grad_norm_([plain_p, plain_q], 0.5, order)
    torch.testing.assert_close(mg.clip_grad_norm_([p, q], 0.5, order), expected)
    now = mg.optim.attached_gradient(p)
    assert type(now) is type(attached)
    assert now.layout == attached.layout
    filled = now.filled(0) if isinstance(now, mg.MaskedTensor) else now.to_dense()
    torch.testing.assert_close(filled, plain_p.grad)
    if isinstance(now, mg.MaskedTensor):
        assert torch.equal(now.mask, attached.mask)  # type: ignore[union-attr]
    mg.clip_grad_value_(p, 0.1)
    now = mg.optim.attached_gradient(p)
    filled = now.filled(0) if isinstance(now, mg.MaskedTensor) else now.to_dense()  # type: ignore[union-attr]
    torch.testing.assert_close(filled, plain_p.grad.clamp(-0.1, 0.1))


def test_a_leaf_masked_tensor_is_a_parameter() -> None:
    x = mg.from_sparse(torch.tensor([[0.0, 3.0], [4.0, 0.0]]).to_sparse()).requires_grad_()
    (x * x).sum().backward()
    assert mg.grad_norm([x]).item() == 10.0
    mg.clip_grad_norm_(x, 5.0)
    torch.testing.assert_close(x.grad.filled(0), torch.tensor([[0.0, 3.0], [4.0, 0.0]]))
    mg.clip_grad_value_(x, 3.5)
    torch.testing.assert_close(x.grad.filled(0), torch.tensor([[0.0, 3.0], [3.5, 0.0]]))


def test_what_train_only_freezes_does_not_count() -> None:
    p, q = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3, 2))
    mg.train_only(p, torch.tensor([True, False, True]))
    mg.train_only(q, torch.tensor([[True], [False], [True]]))
    p.grad = torch.tensor([3.0, nan, 0.0])
    q.grad = torch.sparse_coo_tensor([[2, 1, 2]], [[2.0, 0.0], [inf, inf], [2.0, 0.0]], (3, 2))
    assert mg.grad_norm([p, q]).item() == 5.0
    assert mg.clip_grad_norm_([p, q], 1.0, error_if_nonfinite=True).item() == 5.0
    torch.testing.assert_close(p.grad[::2], torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(q.grad.to_dense()[2], torch.tensor([0.8, 0.0]))
    dense_q = nn.Parameter(torch.zeros(2))
    mg.train_only(dense_q, torch.tensor([False, False]))
    dense_q.grad = torch.tensor([inf, nan])
    assert mg.grad_norm(dense_q).item() == 0.0
    assert mg.grad_norm(dense_q, -inf).item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("order", [1.0, 2.0, inf])
def test_sums_beyond_half_precision_are_measured_and_never_made_infinite(
    dtype: torch.dtype, order: float
) -> None:
    p = nn.Parameter(torch.zeros(3, 1, dtype=dtype))
    p.grad = torch.sparse_coo_tensor([[1, 1]], torch.full((2, 1), 40000.0, dtype=dtype), (3, 1))
    assert mg.grad_norm(p, order).item() == pytest.approx(80000.0, rel=0.01)
    mg.clip_grad_norm_(p, 1e6, order)
    assert mg.grad_norm(p, order).item() == pytest.approx(80000.0, rel=0.01)
    mg.clip_grad_value_(p, 1e6)
    assert mg.grad_norm(p, order).item() == pytest.approx(80000.0, rel=0.01)
    mg.clip_grad_norm_(p, 100.0, order)
    assert p.grad.dtype == dtype
    assert p.grad.to_dense()[1].item() == pytest.approx(100.0, rel=0.01)
    p.grad = torch.sparse_coo_tensor([[1, 1]], torch.full((2, 1), 40000.0, dtype=dtype), (3, 1))
    mg.clip_grad_value_(p, 70000.0)
    assert p.grad.to_dense()[1].item() == pytest.approx(min(70000.0, torch.finfo(dtype).max), rel=0.01)


def test_dense_halves_are_measured_in_float32() -> None:
    p = nn.Parameter(torch.zeros(2, dtype=torch.float16))
    p.grad = torch.full((2,), 60000.0, dtype=torch.float16)
    assert mg.grad_norm(p, 1).item() == 120000.0
    assert mg.clip_grad_norm_(p, 60.0, 1).item() == 120000.0
    torch.testing.assert_close(p.grad, torch.full((2,), 30.0, dtype=torch.float16))


def test_complex_gradients() -> None:
    p = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    p.grad = torch.sparse_coo_tensor([[1, 1]], torch.tensor([3 + 1j, 3j]), (3,))
    assert mg.grad_norm(p).item() == 5.0
    mg.clip_grad_norm_(p, 1.0)
    torch.testing.assert_close(p.grad.to_dense()[1].abs(), torch.tensor(1.0))
    with pytest.raises(TypeError, match="complex numbers have no order"):
        mg.clip_grad_value_(p, 1.0)


def test_parameters_may_come_from_a_generator_and_an_empty_one_is_reported() -> None:
    ps = parameters()
    plain = dense(ps)
    expected = torch.nn.utils.clip_grad_norm_(plain, 0.1)
    torch.testing.assert_close(mg.clip_grad_norm_((p for p in ps), 0.1), expected)
    mg.clip_grad_value_((p for p in ps), 0.01)
    torch.testing.assert_close(mg.grad_norm((p for p in ps), inf), torch.tensor(0.01))
    with pytest.warns(UserWarning, match="empty generator"):
        assert mg.clip_grad_norm_((p for p in []), 1.0).item() == 0.0
    assert mg.clip_grad_norm_([], 1.0).item() == 0.0
    mg.clip_grad_value_([], 1.0)
    assert mg.grad_norm([]).item() == 0.0


def test_all_or_nothing() -> None:
    good, bad = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    good.grad = torch.ones(2)
    bad.grad = torch.sparse_coo_tensor([[3]], torch.ones(1), (3,), check_invariants=False)
    for call in (lambda: mg.clip_grad_norm_([good, bad], 0.1), lambda: mg.clip_grad_value_([good, bad], 0.1)):
        with pytest.raises(IndexError, match="3"):
            call()
        assert good.grad.tolist() == [1.0, 1.0]
    good._maskgrad_gradient = torch.ones(2).to_sparse()  # type: ignore[attr-defined]  # as on PyTorch/XLA
    with pytest.raises(ValueError, match=r"has an attached gradient and a \.grad"):
        mg.grad_norm([good])


def test_a_norm_that_is_not_finite_does_what_torch_does() -> None:
    for bad in (inf, nan):
        p, q = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
        p.grad = torch.sparse_coo_tensor([[0, 1]], [1.0, bad], (3,))
        q.grad = p.grad.to_dense()
        torch.testing.assert_close(
            mg.clip_grad_norm_(p, 1.0), torch.nn.utils.clip_grad_norm_(q, 1.0), equal_nan=True
        )
        torch.testing.assert_close(p.grad.to_dense()[:2], q.grad[:2], equal_nan=True)
        assert p.grad.to_dense()[2] == 0
