"""Gradient checks find what is wrong, say where, and let pass what is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

import maskgrad as mg
from tests.poison import inf, leaf, nan, on, poisoned
from tests.unit.gradients.custom_functions import keep, made_of

LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
COMPRESSED_BETA = "ignore:Sparse C.* tensor support is in beta state:UserWarning"
pytestmark = [
    pytest.mark.filterwarnings(COMPRESSED_BETA),
    pytest.mark.filterwarnings("ignore:Sparse BS.* tensor support is in beta state:UserWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script.* is deprecated:DeprecationWarning"),
]


def known_and_not(dtype: torch.dtype = torch.float64) -> mg.MaskedTensor:
    return poisoned([1.0, None, 4.0, None, None, None], dtype, requires_grad=True)


def plain(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 4.0]], dtype=dtype)


def sparse_tensor(layout: torch.layout) -> Tensor:
    mask = on([1, 1, 0, 0], [0, 0, 1, 1])
    block = (1, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return mg.masked(plain(), mask).to_sparse(layout, blocksize=block).to_sparse_tensor()


def wrong_in(number: int, by: float = 1.0) -> Any:
    """The square, with an error in one entry of its gradient."""

    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        wrong = torch.zeros(x.numel(), dtype=x.dtype)
        wrong[number] = by
        return (2 * x + wrong.reshape(x.shape)) * gradient

    return made_of(lambda x: x**2, backward, keep).apply


class TestWhatIsRight:
    @pytest.mark.parametrize(
        "function",
        [torch.log, torch.mean, lambda x: x.softmax(0), lambda x: (x, x.sum()), lambda x: x.filled(3.0) * 2],
    )
    @pytest.mark.parametrize("fast", [False, True])
    def test_masks(self, function: Any, fast: bool) -> None:
        assert mg.gradcheck(function, known_and_not(), fast_mode=fast)
        assert mg.gradgradcheck(function, (known_and_not(),), fast_mode=fast)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_layouts(self, layout: torch.layout) -> None:
        t = sparse_tensor(layout)
        x = mg.from_sparse(t).requires_grad_()
        assert mg.gradcheck(torch.square, x)
        assert mg.gradgradcheck(torch.square, x)

    def test_complex_numbers(self) -> None:
        x = poisoned([1 + 2j, None, 3j], torch.complex128, requires_grad=True)
        for function in (lambda v: v * v, lambda v: v * v.conj(), torch.abs, lambda v: v.real * 2):
            assert mg.gradcheck(function, x)
        assert mg.gradgradcheck(lambda v: v * v, x)

    def test_plain_tensors_and_constants(self) -> None:
        x, w, k = known_and_not(), leaf(2.0), 3
        assert mg.gradcheck(lambda a, b, n: a * b**n, (x, w, k))
        assert mg.gradgradcheck(lambda a, b, n: a * b**n, (x, w, k))
        assert mg.gradcheck(lambda d: mg.masked(d, on(1, 0)).mean(), leaf(1.0, nan))

    def test_what_torch_checks_besides(self) -> None:
        x = known_and_not()
        assert mg.gradcheck(
            torch.exp,
            x,
            check_forward_ad=True,
            check_batched_grad=True,
            check_batched_forward_grad=True,
            check_grad_dtypes=True,
        )
        assert mg.gradcheck(torch.exp, x, check_forward_ad=True, check_backward_ad=False)

    def test_cotangents_can_be_given(self) -> None:
        assert mg.gradgradcheck(torch.exp, known_and_not(), torch.tensor([0.5, 2.0]).double())
        with pytest.raises(RuntimeError, match=r"[Mm]ismatch in shape"):
            mg.gradgradcheck(torch.exp, known_and_not(), torch.ones(3).double())

    def test_inputs_are_left_alone(self) -> None:
        x = known_and_not()
        before = x._values.detach().clone()
        mg.gradcheck(torch.exp, x)
        assert x.grad is None
        assert torch.equal(x._values.detach().nan_to_num(7), before.nan_to_num(7))

    @pytest.mark.parametrize("mask", [(0, 0), (1, 1)])
    def test_nothing_and_everything(self, mask: tuple[int, int]) -> None:
        assert mg.gradcheck(torch.exp, mg.masked(leaf(0.0, 1.0), on(*mask)))


class TestWhatIsWrong:
    @pytest.mark.parametrize("fast", [False, True])
    def test_one_wrong_entry(self, fast: bool) -> None:
        with pytest.raises(GradcheckError, match=r"Jacobian mismatch for output 0 with respect to input 0"):
            mg.gradcheck(lambda k, v: wrong_in(2)(v), (1, known_and_not()), fast_mode=fast)

    def test_wrong_entries_under_the_mask_do_not_matter(self) -> None:
        assert mg.gradcheck(wrong_in(1), known_and_not())

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_on_sparse_layouts(self, layout: torch.layout) -> None:
        x = mg.from_sparse(sparse_tensor(layout)).requires_grad_()
        with pytest.raises(GradcheckError, match=r"(?s)numerical.*6\.0.*analytical.*7\."):
            mg.gradcheck(wrong_in(2), x)

    @pytest.mark.parametrize("data", [[1.0, 7.0], [1.0, 0.0]])
    def test_a_gradient_outside_the_mask(self, data: list[float]) -> None:
        x = mg.masked(leaf(*data), on(1, 0))
        with pytest.raises(
            GradcheckError, match=r"outside the pattern of input 0 .*, found .* at entry \(1,\)"
        ):
            mg.gradcheck(lambda v: v._values.sum(), x)

    def test_nan_outside_the_mask(self) -> None:
        x = mg.masked(leaf(1.0, inf), on(1, 0))
        with pytest.raises(GradcheckError, match=r"outside the pattern .* found nan"):
            mg.gradcheck(lambda v: torch.where(v.mask, v._values.exp() * 0 + v._values, 0.0).sum(), x)

    def test_complex_derivatives(self) -> None:
        x = poisoned([1 + 2j, None], torch.complex128, requires_grad=True)
        with pytest.raises(GradcheckError, match=r"part of complex outputs only, Jacobian mismatch"):
            mg.gradcheck(wrong_in(0), x)

    def test_second_derivatives(self) -> None:
        def constant(ctx: Any, gradient: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0].detach() * gradient

        once = made_of(lambda x: x**2, constant, keep).apply
        assert mg.gradcheck(once, known_and_not())
        with pytest.raises(
            GradcheckError, match=r"(?s)Jacobian mismatch .*numerical.*analytical:tensor\(\[\[0\."
        ):
            mg.gradgradcheck(once, known_and_not())

    def test_second_derivatives_outside_the_mask(self) -> None:
        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                ctx.save_for_backward(x)
                return x**2

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Any:
                (x,) = ctx.saved_tensors
                return (
                    2 * x + x[1] - x[1].detach()
                ) * gradient  # right, but depends on x[1], which is masked

        def squares(v: mg.MaskedTensor) -> mg.MaskedTensor:
            return mg.masked(Square.apply(v._values), v.mask)

        x = mg.masked(leaf(1.0, 3.0), on(1, 0))
        assert mg.gradcheck(squares, x)
        with pytest.raises(
            GradcheckError, match=r"outside the pattern of input 0 .*, found .* at entry \(1,\)"
        ):
            mg.gradgradcheck(squares, x)

    def test_undefined_gradients(self) -> None:
        two = made_of(
            lambda x: (x * 2, x * 3),
            lambda ctx, a, b: 2 * (0 if a is None else a) + 3 * b,  # forgets that b may be None, too
            lambda ctx, inputs, output: ctx.set_materialize_grads(False),
        )
        with pytest.raises((GradcheckError, TypeError), match=r"None|undefined"):
            mg.gradcheck(two.apply, known_and_not())

    def test_backward_passes_that_differ(self) -> None:
        drawn = made_of(lambda x: x * 2, lambda ctx, g: (2 + 1e-9 * torch.rand_like(g)) * g).apply
        with pytest.raises(GradcheckError, match="Backward is not reentrant"):
            mg.gradcheck(drawn, known_and_not())
        assert mg.gradcheck(drawn, known_and_not(), nondet_tol=1e-6)

    def test_false_instead_of_an_error(self) -> None:
        assert mg.gradcheck(wrong_in(0), known_and_not(), raise_exception=False) is False

    def test_tolerances(self) -> None:
        assert mg.gradcheck(wrong_in(0, 1e-3), known_and_not(), atol=1e-2)


class TestMistakes:
    def test_single_precision(self) -> None:
        with pytest.raises(TypeError, match=r"input 0 must have dtype torch.float64 .* found torch.float32"):
            mg.gradcheck(torch.exp, known_and_not(torch.float32))

    def test_sparse_tensors_of_torch(self) -> None:
        with pytest.raises(TypeError, match=r"input 0 is a sparse tensor .*; write mg.from_sparse"):
            mg.gradcheck(torch.square, sparse_tensor(torch.sparse_coo).requires_grad_())

    def test_nothing_to_check(self) -> None:
        with pytest.raises(ValueError, match=r"found none; use x.requires_grad_"):
            mg.gradcheck(torch.exp, poisoned([1.0, None]))
        with pytest.raises(ValueError, match="no result depends on"):
            mg.gradcheck(lambda x: torch.ones(2), known_and_not())
        with pytest.raises(ValueError, match="no result is a floating-point tensor"):
            mg.gradcheck(lambda x: x.mask, known_and_not())

    def test_a_pattern_that_changes(self) -> None:
        with pytest.raises(ValueError, match="a pattern must be constant"):
            mg.gradcheck(lambda x: mg.masked(x, x.filled(0) <= 4.0), known_and_not())
