"""einops: its backend for PyTorch serves MaskedTensors, and is found by itself."""

from __future__ import annotations

import einops
import pytest
import torch
from einops.layers.torch import Rearrange, Reduce

from tests.ecosystem.truth import garbage


def test_rearranging() -> None:
    x, values, mask = garbage(2, 3, 4)
    packed, shapes = einops.pack([x, x[:, 0]], "b * f")
    for found, indices in (
        (einops.rearrange(x, "b t f -> (b t) f"), lambda y: y.reshape(6, 4)),
        (einops.repeat(x, "b t f -> f t b two", two=2)[..., 1], lambda y: y.permute(2, 1, 0)),
        (einops.unpack(packed, shapes, "b * f")[1], lambda y: y[:, 0]),
        (Rearrange("b t f -> b (t f)")(x), lambda y: y.flatten(1)),
    ):
        assert torch.equal(found.mask, indices(mask))
        assert torch.equal(found.filled(0.0), indices(values))


@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min", "prod"])
def test_reducing(reduction: str) -> None:
    x, values, mask = garbage(2, 3, 4, requires_grad=True)
    found = einops.reduce(x, "b t f -> b f", reduction)
    torch.testing.assert_close(Reduce("b t f -> b f", reduction)(x).filled(0.0), found.filled(0.0))
    found.sum().backward()
    values.requires_grad_()
    for b, f in torch.cartesian_prod(torch.arange(2), torch.arange(4)).tolist():
        left = values[b, :, f][mask[b, :, f]]
        assert found.mask[b, f] == bool(left.numel())
        if left.numel():
            truth = getattr(left, reduction)()
            torch.testing.assert_close(found[b, f].filled(0.0), truth)
            truth.backward()
    torch.testing.assert_close(x._values.grad, values.grad)
    ones = torch.ones(4)
    torch.testing.assert_close(einops.einsum(x, ones, "b t f, f -> b t").filled(0.0), (x @ ones).filled(0.0))
