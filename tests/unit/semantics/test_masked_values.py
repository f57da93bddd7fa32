"""What lies under a mask changes neither results nor gradients, not by a bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg

LENGTHS = torch.tensor([2, 5, 0])
KEPT = (torch.arange(5) < LENGTHS[:, None])[..., None]


#: Where garbage is filled before, or deselected after.
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
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
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_do_not_depend_on_what_is_masked(name: str, form: str) -> None:
    """A vectorised function of PyTorch gives other bits for other strides."""
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
            result = FUNCTIONS[name](mg.masked(x, mask)).filled(0.0)
            (grad,) = torch.autograd.grad(result.cos().sum(), x)
            found.append((result.detach(), grad))
        for result, grad in found[1:]:
            assert torch.equal(result, found[0][0]), shape
            assert torch.equal(grad, found[0][1]), shape


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
