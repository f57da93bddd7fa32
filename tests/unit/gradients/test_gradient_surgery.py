"""Identities whose gradient is masked or reversed: alone, twice, transformed, compiled, on every layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jvp, vmap

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, leaf, nan, on, poisoned

LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]


def sparse(layout: torch.layout) -> mg.MaskedTensor:
    x = mg.masked(
        torch.tensor([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 4.0]]).double(), on([1, 1, 0, 0], [0, 0, 1, 1])
    )
    block = (1, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return x.to_sparse(layout, blocksize=block).requires_grad_()


#: As a factor of the gradient: 1 or 0 for each entry.
SURGERIES: dict[str, Callable[[Any, Tensor], Any]] = {
    "mask": lambda x, factor: mg.mask_gradient(x, factor > 0),
    "reverse": lambda x, factor: mg.reverse_gradient(x, -factor),
}


@pytest.fixture(params=SURGERIES)
def surgery(request: pytest.FixtureRequest) -> Callable[[Any, Tensor], Any]:
    return SURGERIES[request.param]


def factors(*numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


class TestBoth:
    def test_values_are_kept_bit_for_bit(self, surgery: Any) -> None:
        x = leaf(1.0, nan, -inf, -0.0)
        y = surgery(x, factors(1, 0, 0, 1))
        assert torch.equal(y.view(torch.int64), x.view(torch.int64))
        assert gradient(y, x).tolist() == [1.0, 0.0, 0.0, 1.0]

    def test_twice(self, surgery: Any) -> None:
        x = leaf(2.0, 3.0)
        (first,) = torch.autograd.grad((surgery(x, factors(1, 0)) ** 3).sum(), x, create_graph=True)
        assert first.tolist() == [12.0, 0.0]
        assert gradient(first, x).tolist() == [12.0, 0.0]
        assert torch.autograd.gradgradcheck(lambda v: surgery(v, factors(1, 1)) ** 3, x)

    def test_of_a_masked_tensor_keeps_the_pattern(self, surgery: Any) -> None:
        x = poisoned([1.0, None, 3.0, None], requires_grad=True)
        y = surgery(x, factors(0, 1, 1, 1))
        assert_entries(y, [1.0, None, 3.0, None])
        assert gradient(y.square(), x).tolist() == [0.0, 0.0, 6.0, 0.0]

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_of_sparse_layouts(self, surgery: Any, layout: torch.layout) -> None:
        x = sparse(layout)
        y = surgery(x, factors([1, 0, 1, 1], [1, 1, 0, 1]))
        assert y.layout == layout
        y.square().sum().backward()
        assert_entries(x.grad.to_dense(), [[2.0, 0.0, None, None], [None, None, 0.0, 8.0]])

    def test_transformed(self, surgery: Any) -> None:
        def f(v: Tensor, m: Tensor) -> Tensor:
            return (surgery(v, m) ** 2).sum()

        x, m = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        assert vmap(grad(f))(x, m).tolist() == [[2.0, 0.0], [0.0, 8.0]]
        assert jvp(lambda v: f(v, m), (x,), (torch.ones(2, 2),))[1].item() == 10.0
        assert hessian(f)(x[0], m[0]).tolist() == [[2.0, 0.0], [0.0, 0.0]]

    def test_compiled_once_for_all_factors(self, surgery: Any) -> None:
        def f(v: Tensor, m: Tensor, factor: Tensor) -> Tensor:
            return surgery(mg.masked(v, m), factor).exp().sum()

        compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
        x = leaf(0.0, 0.0, nan)
        compiled(x, on(1, 1, 0), factors(1, 1, 1))
        with mg.assert_no_recompile():
            for factor in (factors(0, 0, 1), factors(1, 0, 1)):
                assert gradient(compiled(x, on(1, 1, 0), factor), x).tolist() == [*factor[:2].tolist(), 0.0]


class TestMaskGradient:
    @pytest.mark.parametrize("garbage", [nan, inf])
    def test_selects_and_never_multiplies(self, garbage: float) -> None:
        x = leaf(1.0, 2.0, 3.0)
        y = mg.mask_gradient(x, on(1, 0, 1))
        (got,) = torch.autograd.grad(y, x, torch.tensor([5.0, garbage, 6.0]).double())
        assert got.tolist() == [5.0, 0.0, 6.0]
        assert mg.mask_gradient(torch.tensor([1, 2]), on(1, 0)).tolist() == [1, 2]  # has no gradient


class TestReverseGradient:
    @pytest.mark.parametrize("scale", [1.0, 0.25, 0, 3, torch.tensor(2.0), torch.tensor([2.0, 3.0])])
    def test_identity_and_reversal(self, scale: Any) -> None:
        x = leaf(1.0, 2.0)
        y = mg.reverse_gradient(x, scale)
        assert torch.equal(y, x)
        expected = -(torch.as_tensor(scale).double() * torch.ones(2).double())
        assert gradient(y, x).tolist() == expected.tolist()


ONES = torch.ones(2)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: mg.mask_gradient([1.0], on(1)), TypeError, "x must be a torch.Tensor or a MaskedTensor, found list"),
        (lambda: mg.mask_gradient(ONES.to_sparse(), on(1)), TypeError, "from_sparse"),
        (lambda: mg.mask_gradient(ONES, ONES), TypeError, "mask must be a Boolean torch.Tensor"),
        (lambda: mg.mask_gradient(ONES, [True, False]), TypeError, "mask must be a Boolean"),
        (lambda: mg.mask_gradient(ONES, on(1, 1, 1)), ValueError, "mask must have as many dimensions"),
        (lambda: mg.mask_gradient(ONES, on([1, 1], [1, 1])), ValueError, "mask must have as many dimensions"),
        (lambda: mg.reverse_gradient(1.0), TypeError, "x must be a torch.Tensor or a MaskedTensor, found float"),
        (lambda: mg.reverse_gradient(ONES.to_sparse()), TypeError, "from_sparse"),
        (lambda: mg.reverse_gradient(ONES, "1"), TypeError, "scale must be a number or a torch.Tensor, found str"),
        (lambda: mg.reverse_gradient(ONES, True), TypeError, "found bool"),
        (lambda: mg.reverse_gradient(ONES, nan), ValueError, "scale must be finite, found nan"),
        (lambda: mg.reverse_gradient(ONES, torch.ones(3)), ValueError, r"broadcast to the shape of x, \(2,\)"),
        (lambda: mg.reverse_gradient(ONES, torch.ones(2, 2)), ValueError, r"found shape \(2, 2\)"),
        (lambda: mg.reverse_gradient(ONES, leaf(1.0)[0]), ValueError, r"use scale.detach\(\)"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
