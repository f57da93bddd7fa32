"""Functions over what is specified, forward and backward: one graph, whatever is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from tests.xla.steps import ONE_GRAPH, STEPS, run

WEIGHTS = torch.linspace(-1, 2, 18)
TARGET = torch.linspace(0, 1, 18).view(6, 3)


def by_hook(x: Tensor, mask: Tensor) -> Tensor:
    """Forward code that somebody else wrote, which divides by the mask; the gradient is masked before it."""
    return mg.mask_gradient(x, mask).nan_to_num(0.0).mul(mask).sum() / mask.sum().clamp(min=1)


def attention(x: Tensor, mask: Tensor) -> Any:
    keys = mg.masked(x, mask)[0].unsqueeze(-1)[None]
    return F.scaled_dot_product_attention(torch.ones(1, 6, 1, device=x.device), keys, keys)


def classes(x: Tensor, mask: Tensor) -> Any:
    """Labels and classes are missing; a label is a class that is there."""
    labels = mg.masked(mask.to(torch.int64).argmax(1), mask.any(1) & (TARGET[:, 0].to(x.device) < 0.7))
    weight = torch.tensor([1.0, 2.0, 0.5], device=x.device)
    return F.cross_entropy(mg.masked(x, mask), labels, weight, label_smoothing=0.1)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "mean": lambda x, mask: mg.masked(x, mask).mean(),
    "mean by a hook": by_hook,
    "softmax": lambda x, mask: mg.masked(x, mask).softmax(-1),
    "log_softmax": lambda x, mask: F.log_softmax(mg.masked(x, mask), -1),
    "layer_norm": lambda x, mask: F.layer_norm(mg.masked(x, mask), (3,)),
    "variance": lambda x, mask: mg.masked(x, mask).var(-1, correction=0),
    "attention": attention,
    # PyTorch/XLA runs huber_loss on the host, masked or not.
    "squares": lambda x, mask: F.mse_loss(TARGET.to(x.device), mg.masked(x, mask)),
    "sum of differences": lambda x, mask: F.l1_loss(mg.masked(x, mask), TARGET.to(x.device), reduction="sum"),
    "entropy": lambda x, mask: F.binary_cross_entropy_with_logits(mg.masked(x, mask), TARGET.to(x.device)),
    "classes": classes,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_on_the_cpu_in_one_graph(name: str, device: torch.device) -> None:
    masks = [torch.rand(6, 3) < k / 7 for k in range(STEPS)]  # nothing specified in the first
    data = [torch.where(mask, torch.rand(6, 3), torch.nan) for mask in masks]

    def step(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone().requires_grad_()
        y = FUNCTIONS[name](x, mask)
        y = y.filled(0.0) if isinstance(y, mg.MaskedTensor) else y
        (y.reshape(-1) * WEIGHTS.to(x.device)[: y.numel()]).sum().backward()
        return y, x.grad

    found, cost = run(lambda k: step(data[k].to(device), masks[k].to(device)))
    assert cost == ONE_GRAPH
    for (y, gradient), x, mask in zip(found, data, masks, strict=True):
        for one, wanted in zip((y, gradient), step(x, mask), strict=True):
            torch.testing.assert_close(one, wanted, rtol=1e-3, atol=1e-5, equal_nan=True)
        assert not gradient[~mask].any()


def test_the_promise_counts_graphs_of_xla(device: torch.device) -> None:
    def step(k: int) -> Tensor:
        return mg.masked(torch.ones(8).to(device), (torch.arange(8) < k).to(device)).mean()

    with mg.count_recompiles() as compiled:
        run(step)
    assert compiled.reasons == ["PyTorch/XLA: 1 graphs"]
    with mg.assert_no_recompile():
        run(step)
    with pytest.raises(AssertionError, match="compiled once"), mg.assert_no_recompile():
        run(lambda k: step(k)[None].expand(7) + k % 1, steps=1)
