"""Norms and clipping of dense and sparse gradients together: duplicates merged first, sparse ones stay sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.unit.optim.kinds import BY_ROWS, FULL, dense_of, specified

inf, nan = float("inf"), float("nan")


@pytest.mark.parametrize("kind", [name for name in FULL if name != "whole"])
@pytest.mark.parametrize("order", [-inf, 0.0, 0.5, 2.0, inf])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_gradient_of_any_kind_is_that_of_its_entries(kind: str, order: float, frozen: bool) -> None:
    """PyTorch's norm and clipping of what is specified and trained; it stays of its kind, with its mask."""
    values = torch.tensor([[0.0, 0, 3, -2], [-4, 1, 0, 0], [0, 0, 0, 0], [7, 5, 2, 2]], dtype=torch.float64)
    if kind in BY_ROWS:
        values[:2] += 0.5
    trained = torch.tensor([[True] * 4, [False, True, True, True], [True] * 4, [True, True, False, True]])
    trained = trained if frozen else torch.ones(4, 4, dtype=torch.bool)
    p, q = nn.Parameter(torch.zeros_like(values)), nn.Parameter(torch.zeros(3).double())
    counted = trained & specified(FULL[kind](values))
    plain, plain_q = nn.Parameter(values[counted]), nn.Parameter(torch.zeros(3).double())
    given = FULL[kind](torch.where(trained | (values == 0), values, nan))
    if frozen:
        mg.train_only(p, trained)
    mg.attach_gradient(p, given)
    q.grad, plain_q.grad, plain.grad = torch.ones(3).double(), torch.ones(3).double(), values[counted]
    expected = torch.nn.utils.clip_grad_norm_([plain, plain_q], 0.5, order)
    torch.testing.assert_close(mg.grad_norm([p, q], order), expected)
    torch.testing.assert_close(mg.clip_grad_norm_([p, q], 0.5, order), expected)
    for clip in (inf, 0.1):
        mg.clip_grad_value_([p, q], clip)
        torch.nn.utils.clip_grad_value_([plain, plain_q], clip)
        now = mg.optim.attached_gradient(p)
        assert type(now) is type(given)
        assert now.layout == given.layout
        assert torch.equal(specified(now), specified(given))
        torch.testing.assert_close(dense_of(now)[counted], plain.grad)
        torch.testing.assert_close(q.grad, plain_q.grad)


def test_complex_gradients() -> None:
    p = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    p.grad = torch.sparse_coo_tensor([[1, 1]], torch.tensor([3 + 1j, 3j]), (3,))
    assert mg.grad_norm(p).item() == 5.0
    mg.clip_grad_norm_(p, 1.0)
    torch.testing.assert_close(p.grad.to_dense()[1].abs(), torch.tensor(1.0))
    with pytest.raises(TypeError, match="complex numbers have no order"):
        mg.clip_grad_value_(p, 1.0)


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


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("order", [1.0, 2.0, inf])
def test_norms_beyond_half_precision_are_finite(order: float, sparse: bool) -> None:
    p = nn.Parameter(torch.zeros(3, 1, dtype=torch.float16))
    dense = torch.tensor([[6e4], [6e4], [0.0]], dtype=torch.float16)
    p.grad = torch.sparse_coo_tensor([[1, 1]], dense[:2] * 0.6, (3, 1)) if sparse else dense
    norm = 72000.0 if sparse else 6e4 * 2 ** (1 / order)
    assert mg.grad_norm(p, order).item() == pytest.approx(norm, rel=0.01)
    mg.clip_grad_norm_(p, 1e6, order)
    if sparse:
        mg.clip_grad_value_(p, 1e6)
    assert mg.grad_norm(p, order).item() == pytest.approx(norm, rel=0.01)  # not made infinite
    mg.clip_grad_norm_(p, 100.0, order)
    assert p.grad.dtype == torch.float16
    assert mg.grad_norm(p, order).item() == pytest.approx(100.0, rel=0.01)


@pytest.mark.parametrize("bad", [inf, nan])
def test_a_nonfinite_norm_clips_as_torch(bad: float) -> None:
    p, q = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    p.grad = torch.sparse_coo_tensor([[0, 1]], [1.0, bad], (2,))
    q.grad = p.grad.to_dense()
    with pytest.raises(RuntimeError, match="non-finite"):
        mg.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
    torch.testing.assert_close(p.grad.to_dense(), q.grad, equal_nan=True)
    norms = mg.clip_grad_norm_(p, 1.0), torch.nn.utils.clip_grad_norm_(q, 1.0)
    torch.testing.assert_close(*norms, equal_nan=True)
    torch.testing.assert_close(p.grad.to_dense(), q.grad, equal_nan=True)


def test_nothing_to_clip() -> None:
    p = nn.Parameter(torch.zeros(3, 1))
    assert mg.grad_norm([p]).item() == 0.0
    p.grad = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.long), torch.empty(0, 1), (3, 1))
    assert mg.clip_grad_norm_([p], 1.0).item() == 0.0
    mg.clip_grad_value_([p], 1.0)
    with pytest.warns(UserWarning, match="empty generator"):
        assert mg.clip_grad_norm_((p for p in []), 1.0).item() == 0.0


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda p: mg.clip_grad_norm_(p, nan), ValueError, "max_norm must be at least 0"),
        (lambda p: mg.clip_grad_norm_(p, 1.0, nan), ValueError, "norm_type must be a number or inf"),
        (lambda p: mg.clip_grad_value_(p, -1.0), ValueError, "clip_value must be at least 0"),
        (lambda p: mg.grad_norm([1.0]), TypeError, r"must be tensors, found .*; write model.parameters"),
    ],
)
def test_bad_arguments_are_refused(call: Callable[[Tensor], Any], kind: type[Exception], words: str) -> None:
    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.ones(2)
    with pytest.raises(kind, match=words):
        call(p)
    assert p.grad.tolist() == [1.0, 1.0]
