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
from tests.unit.gradients.custom_functions import Cube, Power, made_of, sparse


def test_plain_tensors_pass_torchs_checks() -> None:
    x, w = leaf(0.5, 2.0), leaf(1.5, -1.0)
    assert torch.equal(Power.apply(x, weight=w, exponent=3)[0], x**3 * w)
    assert torch.autograd.gradcheck(Power.apply, (x, w, 3))
    assert torch.autograd.gradgradcheck(Power.apply, (x, w, 3))
    assert torch.autograd.gradcheck(Cube.apply, (x,), check_forward_ad=True, check_batched_grad=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_values_pattern_and_both_derivatives(dtype: torch.dtype) -> None:
    x = poisoned([1.0, None, 2.0, None, None, None], dtype, requires_grad=True)
    assert_entries(Cube.apply(x), [1.0, None, 8.0, None, None, None], dtype)
    assert mg.gradcheck(Cube.apply, x)
    assert mg.gradgradcheck(Cube.apply, x)


def test_operands_meet_and_broadcast() -> None:
    x = poisoned([[1.0, None], [2.0, 3.0]], requires_grad=True)
    w = poisoned([None, 2.0], requires_grad=True)
    y, inner = Power.apply(x, w, 3)
    assert_entries(y, [[None, None], [None, 54.0]])
    assert_entries(inner, [[None, None], [None, 9.0]])
    assert gradient(y, x).tolist() == [[0.0, 0.0], [0.0, 54.0]]
    assert gradient(y, w).tolist() == [0.0, 27.0]


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
def test_a_filler_keeps_the_derivative_finite() -> None:
    reciprocal = made_of(
        lambda x: 1 / x,
        lambda ctx, gradient: -gradient / ctx.saved_tensors[0] ** 2,
        lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        filler=1.0,
    )
    x = poisoned([2.0, None], requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        reciprocal.apply(x).sum().backward()
    assert x._values.grad.tolist() == [-0.25, 0.0]


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_bsc])
def test_sparse_layouts(layout: torch.layout) -> None:
    x = sparse(layout).requires_grad_()
    assert Cube.apply(x).layout == layout
    assert mg.gradcheck(Cube.apply, x)
    other = poisoned([[None, 1.0, 1.0, 1.0], [1.0, 1.0, 2.0, 1.0]])
    for w, wanted in ((leaf(1.0, 2.0, 3.0, 4.0), [1.0, 8.0, 27.0, 0.0]), (other, [None, 4.0, 18.0, 0.0])):
        y = Power.apply(x, w)[0].to_dense()
        assert_entries(y, [[*wanted[:2], None, None], [None, None, *wanted[2:]]])


def test_several_results_with_a_pattern_of_their_own() -> None:
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


def test_transformations_of_torch_func() -> None:
    def total(x: Tensor, mask: Tensor) -> Tensor:
        return Cube.apply(mg.masked(x, mask)).sum()

    data, mask = torch.tensor([[1.0, nan], [inf, 2.0]]).double(), on([1, 0], [0, 1])
    assert vmap(grad(total))(data, mask).tolist() == [[3.0, 0.0], [0.0, 12.0]]
    assert jacrev(grad(total))(data[0], mask[0]).tolist() == [[6.0, 0.0], [0.0, 0.0]]
    tangent = torch.full((2,), 10.0).double()
    assert jvp(lambda v: total(v, mask[1]), (data[1],), (tangent,))[1].item() == 120.0
    # in_dims of MaskedTensors are those of their parts
    assert_entries(vmap(Cube.apply)(mg.masked(data, mask)), [[1.0, None], [None, 8.0]])


def test_a_rule_of_its_own_for_vmap() -> None:
    doubled = made_of(
        lambda x: torch.from_numpy(x.numpy() * 2),
        lambda ctx, gradient: gradient * 2,
        vmap=staticmethod(lambda info, in_dims, x: (doubled.plain.apply(x), in_dims[0])),
    )
    assert vmap(doubled.apply)(torch.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]


def same(x: Tensor) -> Tensor:
    return x


def row_sum(pattern: Any) -> type[mg.Function]:
    return made_of(lambda x, dim: x.sum(dim), lambda ctx, gradient: (gradient, None), pattern=pattern)


def masked_by(*masks: Any) -> type[mg.Function]:
    return type("Odd", (Power,), {"pattern": staticmethod(lambda *_: masks)})


def declared(**parts: Any) -> type[mg.Function]:
    return type("Wrong", (mg.Function,), {name: staticmethod(part) for name, part in parts.items()})


MATRIX = poisoned([[1.0, None], [2.0, 3.0]])
PAIR = (poisoned([1.0, None]), torch.ones(2).double(), 2)
CSR = sparse(torch.sparse_csr)
ALONG, UNREDUCED = staticmethod(lambda mask, dim: mask.any(dim)), staticmethod(lambda mask, dim: mask)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: declared(forward=same).apply(MATRIX), TypeError, "Wrong got .*, but declares no pattern"),
        (lambda: made_of(same, None, pattern="union"), TypeError, r"must be 'intersection', .* found 'union'"),
        (lambda: declared(forward=lambda ctx, x: x), TypeError, r"first argument ctx; .* setup_context"),
        (lambda: row_sum(ALONG).apply(CSR, 1), mg.errors.UnsupportedLayoutError, r"\(pattern of its own\).*to_dense"),
        (lambda: row_sum("intersection").apply(MATRIX, 1), RuntimeError, r"\(2,\) from operands that .* to \(2, 2\)"),
        (lambda: row_sum(UNREDUCED).apply(MATRIX, 1), RuntimeError, "does not fit the result"),
        (lambda: masked_by(None, None, None).apply(*PAIR), RuntimeError, "mask for each of 2 results, found 3"),
        (lambda: masked_by(torch.ones(2), None).apply(*PAIR), TypeError, r"Boolean tensors or None, .* torch.float32"),
        (lambda: masked_by("all", None).apply(*PAIR), TypeError, "Boolean tensors or None, found str"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
