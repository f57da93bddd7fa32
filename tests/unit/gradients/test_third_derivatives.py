"""Third derivatives are right, or refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maskgrad as mg

D = torch.float64


def written_out(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()


def slope(numbers: Tensor, x: Tensor) -> Tensor:
    weights = torch.linspace(1, 2, numbers.numel(), dtype=numbers.dtype).reshape(numbers.shape)
    return torch.autograd.grad((numbers * weights).sum(), x, retain_graph=True, materialize_grads=True)[0]


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (lambda x: F.layer_norm(x, (4,)), "layer"),
        (lambda x: F.instance_norm(x[:, None]).flatten(1), "batch"),
    ],
    ids=["layer", "instance"],
)
def test_normalizations_of_torch_are_refused(layer: Callable[[Tensor], Tensor], name: str) -> None:
    x = torch.randn(3, 4, dtype=D, requires_grad=True)
    y = layer(x.sin()).square()
    mg.batched_hessian(y, x)  # second derivatives are right
    with pytest.raises(
        NotImplementedError, match=rf"inputs and outputs are connected by {name} normalization, whose "
    ):
        mg.batched_hessian(y, x, create_graph=True)
    z = x.sin()
    mg.batched_hessian((z**3).sum(1) + layer(x.detach()).sum(1), z, create_graph=True)  # is not between


def test_what_is_written_out_is_right() -> None:
    x = torch.randn(3, 4, dtype=D, requires_grad=True)
    y = written_out(x.sin()).square()
    hessian = mg.batched_hessian(y, x, create_graph=True)
    rows = torch.stack([mg.batched_hessian(y[:, i], x, create_graph=True) for i in range(4)], 1)
    torch.testing.assert_close(slope(hessian, x), slope(rows, x))


def test_normalization_in_evaluation_mode_is_a_multiplication() -> None:
    x = torch.randn(3, 4, dtype=D, requires_grad=True)
    norm = nn.BatchNorm1d(4, dtype=D).eval()
    hessian = mg.batched_hessian(norm(x.sin()).pow(3), x, create_graph=True)
    expected = mg.batched_hessian((x.sin() / (1 + norm.eps) ** 0.5).pow(3), x, create_graph=True)
    torch.testing.assert_close(slope(hessian, x), slope(expected, x))
