"""A recorded CUDA graph serves every mask that is copied into its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import nan

pytestmark = [pytest.mark.gpu, pytest.mark.nondeterministic]

STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda x, k: mg.masked(x, k).mean(1).filled(0.0),
    "softmax": lambda x, k: mg.masked(x, k).softmax(1).filled(0.0),
    "loss": lambda x, k: (mg.masked(x, k) * 2 - 1).square().mean(),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_masks_are_copied_into_their_place(step: Callable[[Tensor, Tensor], Tensor]) -> None:
    x = torch.zeros(8, 16, device="cuda", requires_grad=True)
    mask = torch.zeros(8, 16, dtype=torch.bool, device="cuda")

    def forward_and_backward() -> tuple[Tensor, Tensor]:
        y = step(x, mask)
        (slope,) = torch.autograd.grad(y.sum(), x)
        return y.detach(), slope

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            forward_and_backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, slope = forward_and_backward()

    for density in (0.0, 0.3, 1.0):
        new = torch.rand(8, 16, device="cuda") < density
        values = torch.where(new, torch.randn(8, 16, device="cuda"), nan)
        with torch.no_grad():
            x.copy_(values)
            mask.copy_(new)
        graph.replay()
        expected = forward_and_backward()
        torch.testing.assert_close(y, expected[0], equal_nan=True)  # the mean of nothing
        torch.testing.assert_close(slope, expected[1])
        assert torch.equal(slope[~new], torch.zeros_like(slope[~new]))
