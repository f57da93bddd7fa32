"""Elementwise: specified where all operands are; what is under the mask reaches nothing, to second order."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from maskgrad.semantics.elementwise import NEEDS_NO_FILLING
from tests.poison import assert_entries, gradient, inf, leaf, nan, on, poisoned


@pytest.mark.parametrize("scale", [2.0, inf])
def test_a_scalar_tensor_partner_keeps_type_promotion(scale: float) -> None:
    x, s = poisoned([2.0, None], torch.float32, requires_grad=True), torch.tensor(scale, dtype=torch.float64)
    assert (x * s).dtype == torch.float32
    assert gradient(x * s, x).tolist() == [scale, 0.0]


CHOOSING = (
    "clamp fmax fmin hardshrink hardtanh maximum minimum nan_to_num relu relu6 round softshrink threshold"
)


@pytest.mark.parametrize("name", CHOOSING.split())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_chooses_and_never_multiplies_needs_no_filler(name: str, dtype: torch.dtype) -> None:
    assert name in NEEDS_NO_FILLING.replace("|", " ").split()
    garbage = torch.tensor([nan, inf, -inf, 1e38, 0.0], dtype=dtype)
    data, other = (garbage.repeat_interleave(r).repeat(5 // r).requires_grad_() for r in (1, 5))
    x = mg.masked(data, torch.zeros(25, dtype=torch.bool))
    rest: dict[str, tuple[Any, ...]] = {"clamp": (-1, 1), "threshold": (0.1, 20.0), "maximum": (other,)}
    rest |= dict.fromkeys(("minimum", "fmax", "fmin"), (other,))
    function = getattr(torch, name, None) or getattr(F, name)
    values = function(x, *rest.get(name, ()))._values
    no_gradient = torch.zeros_like(values).requires_grad_()
    leaves = (data, other) if len(rest.get(name, ())) == 1 else (data,)
    first = torch.autograd.grad(values, leaves, no_gradient, create_graph=True)
    for grad in first:
        assert grad.tolist() == [0.0] * 25
        if not grad.requires_grad:
            continue
        second = torch.autograd.grad(grad, (*leaves, no_gradient), torch.zeros_like(grad), allow_unused=True)
        assert all(part is None or part.tolist() == [0.0] * 25 for part in second)


FACTORS = [2, 2.5, 0, -1.0, inf, nan, torch.tensor(3.0), torch.tensor(inf), leaf(nan, inf, 2.0, 0.0)]


@pytest.mark.parametrize("number", range(len(FACTORS)))
@pytest.mark.parametrize("function", [torch.mul, torch.div], ids=["mul", "div"])
def test_a_factor_is_filled_only_if_its_partner_asks_for_a_gradient(function: Any, number: int) -> None:
    factor = FACTORS[number].detach() if isinstance(FACTORS[number], torch.Tensor) else FACTORS[number]
    x = poisoned([2.0, None, 3.0, None], torch.float32, requires_grad=True)
    alone = leaf(2.0, 1.0, 3.0, 1.0, dtype=torch.float32)
    for ours, theirs in ((function(x, factor), function(alone, factor)), (factor / x, factor / alone)):
        expected = torch.where(x.mask, gradient(theirs, alone), 0)
        torch.testing.assert_close(gradient(ours, x), expected, equal_nan=True, rtol=0, atol=0)


def test_a_gradient_may_be_asked_for_under_a_transform() -> None:
    mask = on(1, 0)

    def loss(data: torch.Tensor) -> torch.Tensor:
        x = mg.masked(data, mask)
        return torch.vmap(lambda d: (mg.masked(d[None], mask[:1]) * d).sum())(data).sum() + (
            (x * x).exp().sum()
        )

    found = torch.func.grad(lambda d: (mg.masked(d, mask) * d).exp().sum())(leaf(1.0, inf).detach())
    assert_entries(found, [2 * math.e, 0.0])
    found = torch.func.grad(loss)(leaf(1.0, 2.0).detach())
    assert_entries(found, [2 * math.e + 2, 4.0])


GARBAGE = (nan, inf, -inf, 1e38, 0.0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("shape", [(3, 4, 2), (3, 4, 1)], ids=["holes", "padding"])
def test_in_a_graph_gradients_are_selected_after_the_function(shape: tuple[int, ...], backend: str) -> None:
    def chain(x: torch.Tensor, weight: torch.Tensor, row: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        known = mg.masked(x, mask)
        return ((known.log() * weight / known.exp() + known.sqrt() * row).atan() ** 2).filled(0.0).sum()

    compiled = torch.compile(chain, fullgraph=True, backend=backend)
    generator = torch.Generator().manual_seed(0)
    draw: Any = functools.partial(torch.rand, generator=generator, dtype=torch.float64)
    mask = draw(shape) < 0.5
    whole = mask.expand(3, 4, 2)
    x, weight, row = draw(3, 4, 2) + 0.5, draw(3, 4, 2), draw(2)
    leaves = [part.requires_grad_() for part in (x.clone(), weight.clone(), row)]
    right = torch.autograd.grad(chain(*leaves, mask), leaves)
    for garbage in GARBAGE:
        spoilt = [torch.where(whole, part, garbage).requires_grad_() for part in (x, weight)]
        result = compiled(*spoilt, row, mask)
        torch.testing.assert_close(result, chain(*leaves, mask))
        found = torch.autograd.grad(result, [*spoilt, row], create_graph=backend == "eager")
        torch.testing.assert_close(found, right)
        assert not any(part[~whole].any() for part in found[:2])
        if backend == "eager":
            again = torch.autograd.grad([part.square().sum() for part in found], [*spoilt, row])
            assert all(part.isfinite().all() for part in again)
            assert not any(part[~whole].any() for part in again[:2])
