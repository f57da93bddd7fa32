"""Softmax and attention over what is specified: one graph, whatever the lengths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from tests.xla.steps import assert_one_graph, run

NAN = float("nan")


def softmax(x: mg.MaskedTensor) -> Tensor:
    return x.softmax(-1).filled(0.0)


def log_softmax(x: mg.MaskedTensor) -> Tensor:
    return F.log_softmax(x, -1).filled(0.0)


def layer_norm(x: mg.MaskedTensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]).filled(0.0)


def variance(x: mg.MaskedTensor) -> Tensor:
    return x.var(-1, correction=0).filled(0.0)


def attention(x: mg.MaskedTensor) -> Tensor:
    # (L, S) scores become (1, L, 1) queries and (1, S, 1) keys that are known where the first row is
    keys = x[0].unsqueeze(-1)[None]
    query = torch.ones(1, 3, 1, device=x.device)
    return F.scaled_dot_product_attention(query, keys, keys).filled(0.0)


@pytest.mark.parametrize("function", [softmax, log_softmax, layer_norm, variance, attention])
def test_as_on_the_cpu_in_one_graph(
    function: Callable[[mg.MaskedTensor], Tensor], device: torch.device
) -> None:
    torch.manual_seed(1)
    masks = [torch.rand(3, 5) < k / 7 for k in range(8)]  # nothing specified in the first
    data = [torch.where(m, torch.randn(3, 5), NAN) for m in masks]
    weight = torch.randn(15)

    def step(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = x.requires_grad_()
        y = function(mg.masked(x, mask))
        (y.reshape(-1) * weight.to(x.device)[: y.numel()]).sum().backward()
        return y, x.grad

    found, cost = run(lambda k: step(data[k].to(device), masks[k].to(device)))
    assert_one_graph(cost)
    for k, (y, gradient) in enumerate(found):
        expected, slope = step(data[k].clone(), masks[k])
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-6)
        assert not gradient[~masks[k]].any()
