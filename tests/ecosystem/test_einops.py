"""einops: its backend for PyTorch serves MaskedTensors, and is found by itself."""

from __future__ import annotations

import einops
import pytest
import torch
from einops.layers.torch import Rearrange, Reduce

import maskgrad as mg
from tests.ecosystem.rows import works
from tests.ecosystem.truth import garbage


@works("einops", "`rearrange`, `repeat`, `pack`, `unpack`, and the layers")
def test_rearranging() -> None:
    x, values, mask = garbage(2, 3, 4)
    found = einops.rearrange(x, "b t f -> (b t) f")
    assert torch.equal(found.mask, mask.reshape(6, 4))
    assert torch.equal(found.filled(0.0), values.reshape(6, 4))
    found = einops.repeat(x, "b t f -> f t b two", two=2)
    assert torch.equal(found.mask[..., 1], mask.permute(2, 1, 0))
    assert torch.equal(found.filled(0.0)[..., 1], values.permute(2, 1, 0))
    packed, shapes = einops.pack([x, x[:, 0]], "b * f")
    back = einops.unpack(packed, shapes, "b * f")
    assert torch.equal(back[0].mask, mask)
    assert torch.equal(back[1].filled(0.0), values[:, 0])
    assert torch.equal(Rearrange("b t f -> b (t f)")(x).mask, mask.flatten(1))


@works("einops", "`reduce` and `einsum`")
@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min", "prod"])
def test_reducing(reduction: str) -> None:
    x, values, mask = garbage(2, 3, 4)
    found = einops.reduce(x, "b t f -> b f", reduction)
    for b in range(2):
        for f in range(4):
            left = values[b, :, f][mask[b, :, f]]
            assert found.mask[b, f] == bool(left.numel())
            if left.numel():
                truth = getattr(left, reduction)()
                torch.testing.assert_close(found[b, f].filled(0.0), truth)
    torch.testing.assert_close(Reduce("b t f -> b f", reduction)(x).filled(0.0), found.filled(0.0))
    torch.testing.assert_close(
        einops.einsum(x, torch.ones(4), "b t f, f -> b t").filled(0.0), (x @ torch.ones(4)).filled(0.0)
    )


@works("einops", "gradients")
def test_gradients_reach_the_plain_leaf() -> None:
    _, values, mask = garbage(2, 3, 4)
    plain = torch.where(mask, values, torch.nan).requires_grad_()
    einops.reduce(mg.masked(plain, mask), "b t f -> b", "mean").sum().backward()
    assert plain.grad is not None
    torch.testing.assert_close(plain.grad, mask / mask.sum((1, 2), keepdim=True))
