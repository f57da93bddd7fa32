"""Hooks and reversals that used to do nothing, or the wrong thing, in silence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.poison import gradient, leaf, nan, on

pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")


class MaskedMean(mg.Function):
    """The mean of what is specified, with a backward written by hand."""

    @staticmethod
    def pattern(mask: Tensor, known: Tensor) -> Tensor:
        return mask.any()

    @staticmethod
    def forward(x: Tensor, known: Tensor) -> Tensor:
        return torch.where(known, x, 0).sum() / known.sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (known,) = ctx.saved_tensors
        return known * (gradient / known.sum()), None


@pytest.mark.parametrize("compiled", [False, True])
def test_three_ways_to_a_masked_mean_agree(compiled: bool) -> None:
    def function(x: Tensor, known: Tensor) -> Tensor:
        return mg.masked(x, known).mean()

    def by_hand(x: Tensor, known: Tensor) -> Tensor:
        return MaskedMean.apply(mg.masked(x, known), known).filled(0.0)

    def surgery(x: Tensor, known: Tensor) -> Tensor:
        return torch.where(known, mg.mask_gradient(x, known), 0.0).sum() / known.sum()

    x = leaf([1.0, 2.0, nan], [nan, 5.0, nan])
    known = ~x.detach().isnan()
    for way in (function, by_hand, surgery):
        mean = (torch.compile(way, backend="aot_eager", fullgraph=True) if compiled else way)(x, known)
        assert mean.item() == pytest.approx(8 / 3)
        third = known.double() / 3
        torch.testing.assert_close(gradient(mean, x), third, rtol=1e-12, atol=0)


def test_a_reversal_reverses() -> None:
    x = leaf(1.0, 2.0)
    assert gradient(mg.reverse_gradient(x), x).tolist() == [-1.0, -1.0]
    assert gradient(mg.reverse_gradient(mg.masked(x, on(1, 0))), x).tolist() == [-1.0, 0.0]


def test_every_path_and_every_call() -> None:
    w = leaf(1.0, 1.0)
    y = (mg.mask_gradient(w, on(1, 0)) * 2).sum() + (w * 5).sum()
    assert gradient(y, w).tolist() == [7.0, 5.0]
    y.backward()
    assert w.grad is not None
    assert w.grad.tolist() == [7.0, 5.0]


def test_there_is_nothing_to_scrub() -> None:
    x = leaf(0.0, 4.0)
    known = x.detach() > 0
    y = torch.where(known, mg.mask_gradient(x, known).log(), 0.0)
    assert gradient(y, x).tolist() == [0.0, 0.25]
    with torch.autograd.detect_anomaly():
        assert gradient(mg.masked(x, known).log(), x).tolist() == [0.0, 0.25]


def test_backward_hooks_before_activations_in_place() -> None:
    net, seen = nn.Sequential(mg.nn.ReverseGradient(), nn.ReLU(inplace=True)).double(), []
    net[0].register_full_backward_hook(lambda module, grad_input, grad_output: seen.append(grad_input))
    x = leaf(1.0, -2.0)
    with pytest.raises(RuntimeError, match=r"BackwardHookFunction(Backward)? is a view"):
        net(x)  # PyTorch's own limit, and loud
    y = nn.Sequential(mg.nn.ReverseGradient(), nn.ReLU(inplace=True)).double()(x)
    assert gradient(y, x).tolist() == [-1.0, 0.0]
