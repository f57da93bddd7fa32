"""Custom functions on plain and masked tensors: values, patterns, derivatives of both orders, transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, jvp, vmap

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, leaf, nan, on, poisoned
from tests.unit.gradients.custom_functions import (
    Cube,
    Power,
    Reciprocal,
    RowSum,
    Undeclared,
    made_of,
    sparse,
)

LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]


class TestOnPlainTensors:
    def test_passes_torchs_checks(self) -> None:
        x, w = leaf(0.5, 2.0), leaf(1.5, -1.0)
        assert type(Cube.apply(x)) is Tensor
        assert torch.equal(Power.apply(x, weight=w, exponent=3)[0], x**3 * w)
        for function, inputs in ((Cube.apply, (x,)), (Power.apply, (x, w, 3))):
            assert torch.autograd.gradcheck(function, inputs)
            assert torch.autograd.gradgradcheck(function, inputs)
        assert torch.autograd.gradcheck(Cube.apply, (x,), check_forward_ad=True, check_batched_grad=True)


class TestEntryByEntry:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex128])
    def test_values_pattern_and_both_derivatives(self, dtype: torch.dtype) -> None:
        x = poisoned([1.0, None, 2.0, None, None, None], dtype, requires_grad=True)
        y = Cube.apply(x)
        assert_entries(y, [1.0, None, 8.0, None, None, None], dtype)
        plain = (y.real if dtype.is_complex else y).sum()
        (first,) = torch.autograd.grad(plain, x._values, create_graph=True)
        assert first.real.tolist() == [3.0, 0.0, 12.0, 0.0, 0.0, 0.0]
        assert gradient(first.real, x).real.tolist() == [6.0, 0.0, 12.0, 0.0, 0.0, 0.0]

    def test_operands_meet_and_broadcast(self) -> None:
        x = poisoned([[1.0, None], [2.0, 3.0]], requires_grad=True)
        w = poisoned([None, 2.0], requires_grad=True)
        y, inner = Power.apply(x, w, 3)
        assert_entries(y, [[None, None], [None, 54.0]])
        assert_entries(inner, [[None, None], [None, 9.0]])
        assert gradient(y, x).tolist() == [[0.0, 0.0], [0.0, 54.0]]
        assert gradient(y, w).tolist() == [0.0, 27.0]

    @pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
    def test_a_filler_keeps_the_derivative_finite(self) -> None:
        x = poisoned([2.0, None], requires_grad=True)
        with torch.autograd.set_detect_anomaly(True):
            Reciprocal.apply(x).sum().backward()
        assert x._values.grad.tolist() == [-0.25, 0.0]

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_sparse_layouts(self, layout: torch.layout) -> None:
        x = sparse(layout).requires_grad_()
        y = Cube.apply(x)
        assert y.layout == layout
        assert_entries(y.to_dense(), [[1.0, 8.0, None, None], [None, None, 27.0, 0.0]])
        assert mg.gradcheck(Cube.apply, x)
        assert mg.gradgradcheck(Cube.apply, x)

    def test_sparse_meets_dense_and_masked(self) -> None:
        x, w = sparse(torch.sparse_csr).requires_grad_(), leaf(1.0, 2.0, 3.0, 4.0)
        y, _ = Power.apply(x, w)
        assert_entries(y.to_dense(), [[1.0, 8.0, None, None], [None, None, 27.0, 0.0]])
        assert gradient(y, w).tolist() == [1.0, 4.0, 9.0, 0.0]
        other = poisoned([[None, 1.0, 1.0, 1.0], [1.0, 1.0, 2.0, 1.0]])
        assert_entries(
            Power.apply(x, other)[0].to_dense(), [[None, 4.0, None, None], [None, None, 18.0, 0.0]]
        )


class TestOtherPatterns:
    def test_several_results(self) -> None:
        both = made_of(
            lambda x: (x.sum(), x * 2, torch.tensor(5.0)),
            lambda ctx, a, b, c: a + 2 * b,
            lambda ctx, inputs, output: ctx.mark_non_differentiable(output[2]),
            pattern=staticmethod(lambda mask: (mask.any(), mask, None)),
        )
        x = poisoned([1.0, None], requires_grad=True)
        total, doubled, count = both.apply(x)
        assert_entries(total, 1.0)
        assert_entries(doubled, [2.0, None])
        assert type(count) is Tensor
        assert gradient(total + doubled.sum(), x).tolist() == [3.0, 0.0]


class TestTransformations:
    DATA = torch.tensor([[1.0, nan], [inf, 2.0]]).double()
    MASK = on([1, 0], [0, 1])

    @staticmethod
    def total(x: Tensor, mask: Tensor) -> Tensor:
        return Cube.apply(mg.masked(x, mask)).sum()

    def test_transformations_of_torch_func(self) -> None:
        expected = [[3.0, 0.0], [0.0, 12.0]]
        assert grad(self.total)(self.DATA, self.MASK).tolist() == expected
        assert vmap(grad(self.total))(self.DATA, self.MASK).tolist() == expected
        assert jacrev(grad(self.total))(self.DATA[0], self.MASK[0]).tolist() == [[6.0, 0.0], [0.0, 0.0]]
        tangent = torch.full((2,), 10.0).double()
        assert jvp(lambda v: self.total(v, self.MASK[1]), (self.DATA[1],), (tangent,))[1].item() == 120.0
        # in_dims of MaskedTensors are those of their parts
        assert_entries(vmap(Cube.apply)(mg.masked(self.DATA, self.MASK)), [[1.0, None], [None, 8.0]])

    def test_a_rule_of_its_own_for_vmap(self) -> None:
        doubled = made_of(
            lambda x: torch.from_numpy(x.numpy() * 2),
            lambda ctx, gradient: gradient * 2,
            vmap=staticmethod(lambda info, in_dims, x: (doubled.plain.apply(x), in_dims[0])),
        )
        assert vmap(doubled.apply)(torch.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]

    def test_compiled_once_for_all_masks(self) -> None:
        f = torch.compile(self.total, backend="aot_eager", fullgraph=True)
        data = self.DATA.clone().requires_grad_()
        assert gradient(f(data, self.MASK), data).tolist() == [[3.0, 0.0], [0.0, 12.0]]
        with mg.assert_no_recompile():
            for mask in (on([0, 0], [0, 1]), on([0, 0], [0, 0])):
                assert gradient(f(data, mask), data).tolist() == [[0.0, 0.0], [0.0, 12.0 * mask[1, 1]]]


class Sum(RowSum):
    pattern = "intersection"  # type: ignore[assignment]


class First(RowSum):
    pattern = staticmethod(lambda mask, *others: mask)


def masked_by(*masks: Any) -> type[mg.Function]:
    return type("Odd", (Power,), {"pattern": staticmethod(lambda *_: masks)})


def declared(**parts: Any) -> type[mg.Function]:
    return type("Wrong", (mg.Function,), parts)


SAME = staticmethod(lambda x: x)
MATRIX = poisoned([[1.0, None], [2.0, 3.0]])
PAIR = (poisoned([1.0, None]), torch.ones(2).double(), 2)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: Undeclared.apply(MATRIX), TypeError, "Undeclared got a MaskedTensor, but declares no pattern"),
        (lambda: declared(pattern="union", forward=SAME), TypeError, r"must be 'intersection', .* found 'union'"),
        (lambda: declared(forward=staticmethod(lambda ctx, x: x)), TypeError, r"first argument ctx; .* setup_context"),
        (
            lambda: RowSum.apply(sparse(torch.sparse_csr), 1),
            mg.errors.UnsupportedLayoutError,
            r"RowSum \(pattern of its own\).*to_dense",
        ),
        (lambda: Sum.apply(MATRIX, 1), RuntimeError, r"shape \(2,\) from operands that broadcast to \(2, 2\)"),
        (lambda: First.apply(MATRIX, 1), RuntimeError, "does not fit the result"),
        (lambda: masked_by(None, None, None).apply(*PAIR), RuntimeError, "mask for each of 2 results, found 3"),
        (lambda: masked_by(torch.ones(2), None).apply(*PAIR), TypeError, r"Boolean tensors or None, .* torch.float32"),
        (lambda: masked_by("all", None).apply(*PAIR), TypeError, "Boolean tensors or None, found str"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
