"""The masked mean in three ways: the function, a custom autograd function, a hook. And the two that people write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.xla.steps import STEPS, assert_one_graph, run

NAN = float("nan")


class MeanOfSpecified(mg.Function):
    """The mean over specified entries, its derivative written by hand."""

    @staticmethod
    def pattern(mask: Tensor, _: Any) -> Tensor:
        return mask.any()

    @staticmethod
    def forward(x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return torch.where(mask, gradient / mask.sum().clamp(min=1), 0), None


def by_function(x: Tensor, mask: Tensor) -> Tensor:
    return mg.masked(x, mask).mean()


def by_custom_function(x: Tensor, mask: Tensor) -> Tensor:
    return MeanOfSpecified.apply(x, mask)


def by_hook(x: Tensor, mask: Tensor) -> Tensor:
    """Forward code that somebody else wrote, which divides by the mask; the gradient is masked before it."""
    return mg.mask_gradient(x, mask).nan_to_num(0.0).mul(mask).sum() / mask.sum().clamp(min=1)


WAYS = [by_function, by_custom_function, by_hook]


def mask_of(k: int) -> Tensor:
    """Another number of entries at each step, none at the first."""
    return torch.arange(24).view(4, 6) < 3 * k


@pytest.mark.parametrize("mean", WAYS)
def test_one_graph_for_eight_masks(mean: Callable[[Tensor, Tensor], Tensor], device: torch.device) -> None:
    torch.manual_seed(3)
    data = [torch.where(mask_of(k), torch.randn(4, 6), NAN) for k in range(STEPS)]

    def step(k: int) -> tuple[Tensor, Tensor]:
        x = data[k].to(device).requires_grad_()
        loss = mean(x, mask_of(k).to(device))
        loss.backward()
        return loss, x.grad

    found, cost = run(step)
    assert_one_graph(cost)
    for k, (loss, gradient) in enumerate(found):
        mask = mask_of(k)
        nothing = torch.tensor(NAN if mean is by_function else 0.0)
        torch.testing.assert_close(loss, data[k][mask].mean() if k else nothing, equal_nan=True)
        torch.testing.assert_close(gradient, mask / max(3 * k, 1))


def test_selecting_compiles_each_count_anew(device: torch.device) -> None:
    """Why: the shape of what is selected depends on the numbers."""

    def step(k: int) -> Tensor:
        x = torch.ones(4, 6).to(device).requires_grad_()
        x.masked_select(mask_of(k + 1).to(device)).mean().backward()
        return x.grad

    _, cost = run(step)
    assert cost.compilations >= STEPS
    assert cost.copies_to_the_host == STEPS


def test_the_promise_counts_graphs_of_xla(device: torch.device) -> None:
    def step(k: int) -> Tensor:
        return mg.masked(torch.ones(5, 3).to(device), mask_of(k)[:, :3].repeat(2, 1)[:5].to(device)).mean()

    with mg.count_recompiles() as compiled:
        run(step)
    assert compiled.number == 1
    assert compiled.reasons == ["PyTorch/XLA: 1 graphs"]
    with mg.assert_no_recompile():
        run(step)
    with pytest.raises(AssertionError, match="compiled once"), mg.assert_no_recompile():
        run(lambda k: step(k)[None].expand(7) + k % 1, steps=1)
