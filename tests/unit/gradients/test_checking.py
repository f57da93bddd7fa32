"""Gradient checks find what is wrong, say where, and let pass what is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

import maskgrad as mg
from tests.poison import inf, leaf, nan, on, poisoned
from tests.unit.gradients.custom_functions import keep, made_of, sparse


def known_and_not() -> mg.MaskedTensor:
    return poisoned([1.0, None, 4.0, None, None, None], requires_grad=True)


def wrong_in(number: int, by: float = 1.0) -> Any:
    """The square, with an error in one entry of its gradient."""

    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        wrong = torch.zeros(x.numel(), dtype=x.dtype)
        wrong[number] = by
        return (2 * x + wrong.reshape(x.shape)) * gradient

    return made_of(lambda x: x**2, backward, keep).apply


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    "function", [torch.log, lambda x: x.softmax(0), lambda x: (x, x.sum()), lambda x: x.filled(3.0) * 2]
)
def test_what_is_right_passes(function: Any, fast: bool) -> None:
    assert mg.gradcheck(function, known_and_not(), fast_mode=fast)
    assert mg.gradgradcheck(function, (known_and_not(),), fast_mode=fast)


def test_plain_tensors_constants_and_options() -> None:
    x, w, k = known_and_not(), leaf(2.0), 3
    assert mg.gradcheck(lambda a, b, n: a * b**n, (x, w, k))
    assert mg.gradgradcheck(lambda a, b, n: a * b**n, (x, w, k))
    assert mg.gradcheck(lambda d: mg.masked(d, on(1, 0)).mean(), leaf(1.0, nan))
    batched = {"check_batched_grad": True, "check_batched_forward_grad": True, "check_grad_dtypes": True}
    assert mg.gradcheck(torch.exp, x, check_forward_ad=True, **batched)
    assert mg.gradcheck(torch.exp, x, check_forward_ad=True, check_backward_ad=False)


@pytest.mark.parametrize("fast", [False, True])
def test_one_wrong_entry(fast: bool) -> None:
    with pytest.raises(GradcheckError, match=r"Jacobian mismatch for output 0 with respect to input 0"):
        mg.gradcheck(lambda k, v: wrong_in(2)(v), (1, known_and_not()), fast_mode=fast)
    assert mg.gradcheck(wrong_in(2), known_and_not(), fast_mode=fast, raise_exception=False) is False
    assert mg.gradcheck(wrong_in(2, 1e-3), known_and_not(), fast_mode=fast, atol=1e-2)
    assert mg.gradcheck(wrong_in(1), known_and_not(), fast_mode=fast)  # under the mask


def test_sparse_layouts() -> None:
    x = sparse(torch.sparse_csr).requires_grad_()
    assert mg.gradcheck(torch.square, x)
    with pytest.raises(GradcheckError, match=r"(?s)numerical.*6\.0.*analytical.*7\."):
        mg.gradcheck(wrong_in(2), x)


def test_a_gradient_outside_the_mask() -> None:
    for under, function, found in (
        (0.0, lambda v: v._values.sum(), ".*"),
        (inf, lambda v: torch.where(v.mask, v._values.exp() * 0 + v._values, 0.0).sum(), "nan"),
    ):
        x = mg.masked(leaf(1.0, under), on(1, 0))
        with pytest.raises(GradcheckError, match=rf"pattern of input 0 .*, found {found} at entry \(1,\)"):
            mg.gradcheck(function, x)


def test_an_input_without_a_gradient_hides_no_other() -> None:
    x, unused = (mg.masked(leaf(1.0, inf), on(1, 0)) for _ in range(2))
    with pytest.raises(GradcheckError, match="pattern of input 1"):
        mg.gradcheck(
            lambda _, v: torch.where(v.mask, v._values.exp() * 0 + v._values, 0.0).sum(), (unused, x)
        )


def test_second_derivatives_outside_the_mask() -> None:
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (2 * x + x[1] - x[1].detach()) * gradient  # right, but depends on x[1], which is masked

    square = made_of(lambda x: x**2, backward, keep)

    def squares(v: mg.MaskedTensor) -> mg.MaskedTensor:
        return mg.masked(square.apply(v._values), v.mask)

    x = mg.masked(leaf(1.0, 3.0), on(1, 0))
    assert mg.gradcheck(squares, x)
    with pytest.raises(GradcheckError, match=r"outside the pattern of input 0 .*, found .* at entry \(1,\)"):
        mg.gradgradcheck(squares, x)


EYE = torch.eye(2).double()


@pytest.mark.parametrize(
    ("function", "inputs", "kind", "words"),
    [
        (torch.exp, leaf(1.0).float(), TypeError, r"0 must have dtype torch.float64 .* torch.float32"),
        (torch.square, EYE.to_sparse().requires_grad_(), TypeError, r"0 is a sparse tensor .*; write mg.from_sparse"),
        (torch.exp, poisoned([1.0, None]), ValueError, r"found none; use x.requires_grad_"),
        (lambda x: torch.ones(2), known_and_not(), ValueError, "no result depends on"),
        (lambda x: x.mask, known_and_not(), ValueError, "no result is a floating-point tensor"),
        (lambda x: mg.masked(x, x.filled(0) <= 4.0), known_and_not(), ValueError, "a pattern must be constant"),
    ],
)  # fmt: skip
def test_mistakes_are_named(function: Any, inputs: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        mg.gradcheck(function, inputs)
