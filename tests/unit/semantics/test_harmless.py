"""What lies under a mask is left alone where a look shows that it is harmless, and only there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from maskgrad.semantics.elementwise import LOW, RISING, TAME
from maskgrad.semantics.entries import is_complete, is_finite, is_moderate

LENGTHS = torch.tensor([2, 5, 0])
KEPT = (torch.arange(5) < LENGTHS[:, None])[..., None]


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
)
def test_what_is_finite(dtype: torch.dtype) -> None:
    x = torch.ones(300, dtype=dtype) * 300  # a sum that float16 could not hold
    assert is_finite(x)
    for broken in (math.inf, -math.inf, math.nan):
        x[7] = broken
        assert not is_finite(x)


def test_what_is_moderate() -> None:
    x, mask = torch.ones(2, 5), torch.ones(2, 5, dtype=torch.bool)
    assert is_moderate(mask, x)
    assert is_moderate(mask[:, :1].expand(2, 5), x)
    for broken in (math.inf, math.nan, 1e10, -1e10):
        assert not is_moderate(mask, x.index_fill(0, torch.tensor([1]), broken))
    assert not is_moderate(mask, x[:, ::2])  # a look would copy
    assert not is_moderate(mask, x.half())
    assert not is_moderate(torch.ones(5, 2, dtype=torch.bool).t(), x)  # filled, x would get other strides


#: where a look at values decides what is computed
LOOKS: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(torch, name) for name in ("sigmoid", "exp", "exp2", "tanh", "square")},
    **{name: getattr(F, name) for name in ("gelu", "softplus", "silu", "logsigmoid")},
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "matmul": lambda x: x @ torch.ones(x.shape[-1], 3),
    "loss": lambda x: F.huber_loss(x, torch.ones(x.shape), reduction="none"),
}


@pytest.mark.parametrize(
    "form", ["rows", "permuted rows", "holes", "permuted", "permuted mask", "every other"]
)
@pytest.mark.parametrize("name", LOOKS)
def test_bits_do_not_depend_on_what_a_look_finds(name: str, form: str) -> None:
    """A vectorised function of PyTorch gives other bits for other strides: whether values are filled must not show."""
    torch.manual_seed(0)
    for shape in ((3, 5, 4), (4, 40, 16)):
        numbers = torch.randn(shape) * 3
        mask = torch.rand(shape) < 0.6
        if "rows" in form:
            mask = mask[..., :1].expand(shape)
        elif form == "permuted mask":
            mask = mask.permute(2, 1, 0).contiguous().permute(2, 1, 0)
        found = []
        for garbage in (0.0, -1e30, 1e38, math.nan, math.inf):
            x = torch.where(mask.contiguous(), numbers, garbage)
            if form.startswith("permuted") and form != "permuted mask":
                x = x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
            elif form == "every other":
                x = torch.stack((x, x), -1)[..., 0]
            x.requires_grad_()
            result = LOOKS[name](mg.masked(x, mask)).filled(0.0)
            (grad,) = torch.autograd.grad(result.cos().sum(), x)
            found.append((result.detach(), grad))
        for result, grad in found[1:]:
            assert torch.equal(result, found[0][0]), shape
            assert torch.equal(grad, found[0][1]), shape


def test_nothing_is_looked_at_where_that_would_break_a_graph() -> None:
    mask = torch.ones(3, dtype=torch.bool)
    found = []

    def look(x: Tensor) -> Tensor:
        found.append((is_finite(x), is_moderate(mask, x), is_complete(mask)))
        return x.sum()

    torch.func.grad(look)(torch.ones(3))
    torch.func.jvp(look, (torch.ones(3),), (torch.ones(3),))
    # of a mask that no transform knows, the numbers are there; yet a look depends on nothing else than the state
    assert found == [(False, False, False)] * 2
    assert is_complete(mask)
    assert not is_complete(~mask)


#: numbers of all sizes up to the limit, at which exponentials, logarithms and powers overflow in turn
SIZES = torch.tensor([0.0, 1e-38, 1e-30, 1e-9, 1.0, 3.0, 20.0, 87.0, 89.0, 104.0, 1e3, 1e4, 1e6, 1e9])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", (TAME + RISING).split())
def test_derivatives_of_moderate_numbers_are_finite(name: str, dtype: torch.dtype) -> None:
    name = name.partition("|")[0]
    function = getattr(torch, name, None) or getattr(F, name)
    numbers = torch.cat([SIZES, -SIZES]).to(dtype)
    if name in RISING.split():
        numbers = torch.cat([numbers[numbers < LOW], numbers.new_tensor([LOW, -math.inf])])
    ways: list[Callable[..., Tensor]] = [function]
    if name == "gelu":
        ways.append(lambda x: F.gelu(x, approximate="tanh"))
    for way in ways:
        for others in _others(name, numbers):
            x = numbers.clone().requires_grad_()
            given = [x, *(other.clone().requires_grad_() for other in others)]
            first = torch.autograd.grad(way(*given).sum(), given, create_graph=True)
            assert all(bool(g.isfinite().all()) for g in first)
            if name == "hardsigmoid":  # PyTorch has no second derivative
                continue
            weighted = sum((g * 0).sum() for g in first if g.requires_grad)
            if not isinstance(weighted, int):
                second = torch.autograd.grad(weighted, given, allow_unused=True)
                assert all(g is None or bool((g == 0).all()) for g in second)


def _others(name: str, numbers: Tensor) -> list[list[Tensor]]:
    return [[numbers.roll(shift)] for shift in (3, 9)] if name == "mul" else [[]]


def _program(x: Any, first: Tensor, second: Tensor) -> Any:
    hidden = F.gelu(F.linear(x, first)) * 1.5
    hidden = torch.exp(hidden * 0.1) + hidden
    return F.layer_norm(F.linear(hidden, second) + 1, (3,))


def _expected(x: Tensor, first: Tensor, second: Tensor, seed: Tensor) -> tuple[Tensor, ...]:
    """Gradients of the rows that are there, alone."""
    left = x[KEPT.squeeze(-1)].detach().requires_grad_()
    out = _program(left, first, second)
    found = torch.autograd.grad(out, (left, first, second), seed[KEPT.squeeze(-1)])
    whole = torch.zeros_like(x)
    whole[KEPT.squeeze(-1)] = found[0]
    return whole, *found[1:]


@pytest.mark.parametrize("poison", [0.0, 7.0, 1e38, -1e300, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("way", ["backward", "grad", "hook", "filled"])
def test_no_gradient_comes_from_what_is_unspecified(poison: float, way: str) -> None:
    """Neither numbers under the mask nor gradients that somebody sends there reach parameters or input."""
    torch.manual_seed(0)
    x = torch.where(KEPT, torch.randn(3, 5, 4, dtype=torch.float64), poison)
    first = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    second = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    seed = torch.randn(3, 5, 3, dtype=torch.float64)
    expected = _expected(x, first, second, seed)
    leaf = x.clone().requires_grad_()
    out = _program(mg.from_lengths(leaf, LENGTHS), first, second)
    dirty = torch.where(KEPT, seed, math.nan)
    if way == "backward":
        out.backward(dirty)
        found = [t.grad for t in (leaf, first, second)]
    elif way == "grad":
        found = list(torch.autograd.grad(out, (leaf, first, second), dirty))
    elif way == "hook":
        out.register_hook(lambda _: dirty)
        (out.filled(0) * seed).sum().backward()
        found = [t.grad for t in (leaf, first, second)]
    else:
        (out.filled(math.nan) * torch.where(KEPT, seed, 0)).sum().backward()
        found = [t.grad for t in (leaf, first, second)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert found[0] is not None
    assert (found[0][~KEPT.squeeze(-1)] == 0).all()


def test_infinite_slopes_are_kept_from_what_is_unspecified() -> None:
    x = torch.tensor([[1.0, 2.0], [-3.0, -4.0]], requires_grad=True)
    masked = mg.masked(x, torch.tensor([[True], [False]]))
    F.leaky_relu(masked, math.inf).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm", "group_norm"])
def test_infinite_parameters_reach_nothing_where_nothing_is_specified(norm: str) -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    hidden = mg.masked(x, torch.tensor(False).expand(2, 3, 1)) * 2
    weight = torch.tensor([1.0, math.inf, 1.0, 1.0])
    if norm == "layer_norm":
        out = F.layer_norm(hidden, (4,), weight)
    elif norm == "rms_norm":
        out = F.rms_norm(hidden, (4,), weight)
    else:
        out = F.group_norm(hidden.transpose(1, 2), 2, weight)
    out.filled(0).sum().backward()
    assert x.grad is not None
    assert (x.grad == 0).all()
