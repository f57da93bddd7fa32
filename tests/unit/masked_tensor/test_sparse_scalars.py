"""COO tensors without dimensions: one number, or none; what is right is computed with Python's numbers."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import nan

import maskgrad as mg


def scalar(number: float | None) -> Any:
    """Of one number, or of none with NaN in its place."""
    known = number is not None
    return mg.masked(torch.tensor(number if known else nan), torch.tensor(known)).to_sparse()


ELEMENTWISE = {
    "exp": (torch.exp, math.exp),
    "number": (lambda x: 3 * x + 1, lambda a: 3 * a + 1),
    "itself": (lambda x: x * x, lambda a: a * a),
    "plain": (lambda x: x * torch.tensor(5.0), lambda a: a * 5.0),
    "masked": (lambda x: x + mg.masked(torch.tensor(4.0), torch.tensor(True)), lambda a: a + 4.0),
    "where": (lambda x: torch.where(x > 0, x, 0.0), lambda a: max(a, 0.0)),
    "in place": (lambda x: x.mul_(2.0), lambda a: 2.0 * a),
    "like": (torch.zeros_like, lambda _: 0.0),
    "softmax": (lambda x: x.softmax(0), lambda _: 1.0),
    "log_softmax": (lambda x: x.log_softmax(-1), lambda _: 0.0),
    "normalize": (lambda x: torch.nn.functional.normalize(x, dim=0), lambda a: math.copysign(1.0, a)),
    "transpose": (lambda x: x.t(), lambda a: a),
    "everything": (lambda x: x[...], lambda a: a),
    "mask_gradient": (lambda x: mg.mask_gradient(x, torch.tensor(True)), lambda a: a),
    "copy": (copy.deepcopy, lambda a: a),
    "file": (lambda x: pickle.loads(pickle.dumps(x)), lambda a: a),
    "again": (lambda x: mg.from_sparse(x.to_sparse_tensor()), lambda a: a),
    "shape": (lambda x: x.reshape(1).reshape(()), lambda a: a),
}


@pytest.mark.parametrize("number", [2.0, -3.0, None])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str, number: float | None) -> None:
    function, by_hand = ELEMENTWISE[name]
    found = function(scalar(number))
    assert found.shape == ()
    assert found.mask.item() is (number is not None)
    assert found.tolist() == (None if number is None else pytest.approx(by_hand(number)))


@pytest.mark.parametrize(
    ("name", "nothing"),
    [("sum", 0.0), ("mean", nan), ("prod", 1.0), ("norm", 0.0), ("amax", None), ("argmax", None)],
)
def test_reductions(name: str, nothing: float | None) -> None:
    assert getattr(scalar(2.0), name)().item() == (0 if name == "argmax" else 2.0)
    empty = getattr(scalar(None), name)()
    if nothing is None:
        assert empty.tolist() is None
    else:
        torch.testing.assert_close(empty, torch.tensor(nothing), equal_nan=True)


def test_broadcasting_and_stacking() -> None:
    three = torch.tensor([1.0, 2.0, 3.0])
    for number, expected in ((2.0, [2.0, 4.0, 6.0]), (None, [None] * 3)):
        assert (scalar(number) * three).tolist() == expected
        assert (scalar(number) * mg.masked(three).to_sparse()).tolist() == expected
        assert torch.stack([scalar(number)] * 2).tolist() == [number] * 2


def test_reading() -> None:
    x, empty = scalar(2.0), scalar(None)
    assert repr(x) == "masked(2., layout=torch.sparse_coo)"
    assert repr(empty) == "masked(--, layout=torch.sparse_coo)"
    assert f"{x:.2f}" == "2.00"
    assert (x.item(), bool(x > 1), x.filled(7.0).item(), empty.filled(7.0).item()) == (2.0, True, 2.0, 7.0)
    assert (x.compressed().tolist(), empty.compressed().tolist()) == ([2.0], [])
    with pytest.raises(mg.errors.UnspecifiedValueError):
        empty.item()


def test_tensors_of_torch() -> None:
    twice = torch.sparse_coo_tensor(torch.empty(0, 2, dtype=torch.int64), torch.tensor([1.0, 2.0]), ())
    for t, expected in (
        (torch.tensor(3.0).to_sparse(), 3.0),
        (twice, 3.0),
        (torch.sparse_coo_tensor(()), None),
    ):
        assert mg.from_sparse(t).tolist() == expected
        assert mg.from_sparse(t).to_sparse_tensor().to_dense().item() == (expected or 0.0)


def test_gradients() -> None:
    leaf = torch.tensor(2.0, requires_grad=True)
    (mg.masked(leaf, torch.tensor(True)).to_sparse() * 5.0).square().sum().backward()
    assert leaf.grad.item() == 2 * 25.0 * 2.0
    t = torch.tensor(2.0).to_sparse().requires_grad_()
    mg.from_sparse(t).exp().sum().backward()
    assert t.grad.to_dense().item() == pytest.approx(math.exp(2.0))
    x = scalar(3.0).detach().requires_grad_()
    (x * x).backward()
    assert x.grad.tolist() == 6.0
    assert mg.gradcheck(lambda y: y.exp() * y, (scalar(0.5).double().detach().requires_grad_(),))
    empty = torch.tensor(nan, requires_grad=True)
    mg.masked(empty, torch.tensor(False)).to_sparse().exp().sum().backward()
    assert empty.grad.item() == 0.0


def test_coalescing() -> None:
    t = torch.sparse_coo_tensor(
        torch.empty(0, 2, dtype=torch.int64), torch.tensor([1.0, 5.0]), (), requires_grad=True
    )
    mg.sparse.coalesce(t, "mean").to_dense().backward()
    assert t.grad.to_dense().item() == 0.5  # what each of the two entries receives
