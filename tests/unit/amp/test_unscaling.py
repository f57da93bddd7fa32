"""What becomes of gradients when they are unscaled: merged, checked, of the dtype that the optimizer takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from maskgrad.gradients import attached
from tests.unit.amp.test_grad_scaler import scaler
from tests.unit.optim.kinds import KINDS, MASKED, coo, dense_of, specified

inf, nan = float("inf"), float("nan")
every_half = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
ENTRIES = KINDS | MASKED | {"masked inf": lambda d: mg.masked(torch.where(d != 0, d, inf), d != 0)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("build", [mg.optim.SGD, torch.optim.SGD], ids=["mg", "torch"])
def test_duplicates_are_merged_before_the_check(dtype: torch.dtype, build: Any) -> None:
    # Each value is finite, and the sum is not, unless it is unscaled first.
    large = torch.finfo(dtype).max * 0.6
    p = nn.Parameter(torch.zeros(4, 1, dtype=dtype))
    optimizer, made = build([p], lr=0.25), scaler(8.0)
    p.grad = coo([[1, 1]], [[large], [large]], (4, 1), dtype)
    made.unscale_(optimizer)
    assert attached.current_gradient(p).is_coalesced()
    assert mg.grad_norm([p]).item() == pytest.approx(large / 4, rel=0.01)
    made.step(optimizer)
    made.update()
    assert made.get_scale() == 8.0
    assert p[1].item() == pytest.approx(-large / 16, rel=0.01)
    assert p.detach()[[0, 2, 3]].tolist() == [[0.0]] * 3
    made.update(1.0)
    before, p.grad = p.detach().clone(), coo([[1, 1]], [[large], [large]], (4, 1), dtype)
    made.step(optimizer)
    made.update()
    overflows = dtype is torch.float32 or build is torch.optim.SGD  # of halves mg.optim takes float32
    assert made.get_scale() == (0.5 if overflows else 1.0)
    assert torch.equal(p, before) == overflows


@every_half
@pytest.mark.parametrize("has_grad_dtype", [True, False])
def test_what_would_underflow_in_half_precision_arrives(
    dtype: torch.dtype, has_grad_dtype: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In ``.grad``, or attached where PyTorch has no ``Tensor.grad_dtype``."""
    monkeypatch.setattr(attached, "_HAS_GRAD_DTYPE", attached._HAS_GRAD_DTYPE and has_grad_dtype)
    p, q = nn.Parameter(torch.zeros(4, 1, dtype=dtype)), nn.Parameter(torch.zeros(3, dtype=dtype))
    optimizer, made = mg.optim.SGD([p, q], lr=1e6), scaler(2.0**16)
    p.grad = coo([[1, 1]], [[2e-3], [2e-3]], (4, 1), dtype)
    q.grad = torch.full((3,), 1e-3, dtype=dtype)
    made.unscale_(optimizer)
    assert (q.grad is not None) == attached._HAS_GRAD_DTYPE
    for param in (p, q):
        assert attached.current_gradient(param).dtype == torch.float32
    made.step(optimizer)
    assert p[1].item() == pytest.approx(-4e9 / 2**16 / 1e6, rel=0.01)
    assert q[0].item() == pytest.approx(-1e9 / 2**16 / 1e6, rel=0.01)
    assert p.grad.dtype == q.grad.dtype == dtype


@every_half
@pytest.mark.parametrize("stepped", [True, False])
def test_parameters_get_the_dtype_of_their_gradients_back(dtype: torch.dtype, stepped: bool) -> None:
    p, q = nn.Parameter(torch.zeros(4, 1, dtype=dtype)), nn.Parameter(torch.zeros(3, dtype=dtype))
    optimizer, made = mg.optim.SGD([p, q], lr=0.1), scaler()
    p.grad, q.grad = coo([[1, 1]], [[1.0], [2.0]], (4, 1), dtype), torch.ones(3, dtype=dtype)
    made.unscale_(optimizer)
    if stepped:
        made.step(optimizer)
    made.update()
    for param in (p, q):
        assert param.grad.dtype == dtype
        assert getattr(param, "grad_dtype", dtype) == dtype
    assert p.grad.to_dense()[1].item() == 3 / 8
    optimizer.zero_grad()
    (q * 2).sum().backward()
    assert q.grad.dtype == dtype
    q.grad, p.grad = None, coo([[1]], [[1.0]], (4, 1), dtype)
    made.unscale_(optimizer)
    p.grad = None  # somebody throws the gradient away
    made.step(optimizer)
    assert getattr(p, "grad_dtype", dtype) == dtype


@pytest.mark.parametrize("kind", ENTRIES.values(), ids=ENTRIES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_attached_gradients_are_unscaled_on_their_pattern(kind: Any, dtype: torch.dtype) -> None:
    values = torch.tensor([[0.0, 3.0, 0.0, 0.0], [-4.0, 2.0, 0.0, 0.0]])
    p = nn.Parameter(torch.ones(2, 4, dtype=dtype))
    given = kind((values * 8).to(dtype))
    mg.attach_gradient(p, given)
    optimizer, made = mg.optim.SGD([p], lr=0.125), scaler()
    made.unscale_(optimizer)
    now = mg.optim.attached_gradient(p)
    assert type(now) is type(given)
    assert now.layout == given.layout
    assert now.dtype == torch.float32
    assert torch.equal(specified(now), specified(given))
    assert torch.equal(dense_of(now), values)
    made.step(optimizer)
    made.update()
    assert made.get_scale() == 8.0
    assert torch.equal(p.detach(), (1 - values / 8).to(dtype))
    before = p.detach().clone()
    mg.attach_gradient(
        p, kind(torch.where(values == 2, inf, values * 8).to(dtype))
    )  # an infinity that counts
    made.step(optimizer)
    made.update()
    assert made.get_scale() == 4.0
    assert torch.equal(p.detach(), before)


@pytest.mark.parametrize("build", [mg.optim.SGD, torch.optim.SGD], ids=["mg", "torch"])
def test_what_train_only_freezes_is_never_looked_at(build: Any) -> None:
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, 2))
    mg.train_only(p, torch.tensor([True, False, True]))
    mg.train_only(q, torch.tensor([[True], [False], [True]]))
    optimizer, made = build([p, q], lr=0.5), scaler()
    p.grad = torch.tensor([8.0, nan, 8.0])
    q.grad = coo([[2, 1, 2]], [[4.0, 0.0], [inf, inf], [4.0, 0.0]], (3, 2))
    made.step(optimizer)
    made.update()
    assert made.get_scale() == 8.0
    assert p.tolist() == [0.5, 1.0, 0.5]
    assert q.tolist() == [[1.0, 1.0], [1.0, 1.0], [0.5, 1.0]]


def test_a_broken_gradient_leaves_all_gradients_scaled() -> None:
    p, q = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer, made = mg.optim.SGD([p, q], lr=0.1), scaler()
    p.grad = torch.full((2,), 8.0)
    q.grad = torch.sparse_coo_tensor([[3]], torch.ones(1), (3,), check_invariants=False)
    with pytest.raises(IndexError, match="3"):
        made.step(optimizer)
    assert p.grad.tolist() == [8.0, 8.0]


def test_a_gradient_that_two_parameters_share_is_unscaled_once() -> None:
    for grad in (torch.full((2,), 8.0), coo([[0, 1]], [8.0, 8.0], (2,)), torch.full((2,), 8.0).half()):
        p, q = (nn.Parameter(torch.ones(2, dtype=grad.dtype)) for _ in range(2))
        optimizer, made = mg.optim.SGD([p, q], lr=0.5), scaler()
        p.grad = grad
        q.grad = p.grad
        made.step(optimizer)
        assert p.tolist() == q.tolist() == [0.5, 0.5]


def test_complex_and_transposed_gradients_are_unscaled() -> None:
    c, view = nn.Parameter(torch.ones(2) + 0j), nn.Parameter(torch.ones(3, 2))
    optimizer, made = mg.optim.SGD([c, view], lr=1.0), scaler()
    c.grad, view.grad = torch.tensor([4 + 8j, 0]), torch.full((2, 3), 2.0).t()
    made.step(optimizer)
    assert c.tolist() == [0.5 - 1j, 1 + 0j]
    assert view.tolist() == [[0.75, 0.75]] * 3
    made.update()
    c.grad = torch.tensor([4 + 1j * inf, 0])
    made.step(optimizer)
    made.update()
    assert made.get_scale() == 4.0
    assert c.tolist() == [0.5 - 1j, 1 + 0j]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("build", [mg.optim.SGD, torch.optim.SGD], ids=["mg", "torch"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_scale_below_one_makes_gradients_larger(dtype: torch.dtype, build: Any, sparse: bool) -> None:
    p = nn.Parameter(torch.ones(2, dtype=dtype))
    optimizer, made = build([p], lr=1.0), scaler(0.75)
    p.grad = torch.full((2,), torch.finfo(dtype).max * 0.875, dtype=dtype)
    p.grad = p.grad.to_sparse() if sparse else p.grad
    # The rules of mg.optim get float32, where there is room for more than float16 can hold.
    fits = dtype is torch.float16 and build is mg.optim.SGD
    made.step(optimizer)
    made.update()
    assert made.get_scale() == (0.75 if fits else 0.375)
    assert (p.tolist() == [1.0, 1.0]) is not fits
