"""torch.compile and torch.export: one graph, one compilation for all masks, the numbers of eager execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import maskgrad as mg
from tests.poison import inf, nan, poisoned

SQUARE = [[1.0, 2.0, None], [3.0, None, 4.0], [None, 5.0, 6.0]]
PLAIN = torch.tensor([[1.0, 2.0, 3.0], [0.5, 1.0, 2.0], [2.0, 4.0, 1.0]]).double()


def masks(shape: tuple[int, ...]) -> list[Tensor]:
    """Ten masks, the empty and the full one among them."""
    return [torch.zeros(shape).bool(), torch.ones(shape).bool(), *(torch.rand(shape) < 0.5 for _ in range(8))]


def compiled(function: Callable[..., Any]) -> tuple[Callable[..., Any], CompileCounterWithBackend]:
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, backend=counter, fullgraph=True), counter


def assert_same(ours: Any, theirs: Any, label: str = "") -> None:
    assert type(ours) is type(theirs), label
    if isinstance(ours, mg.MaskedTensor):
        assert torch.equal(ours.mask, theirs.mask), label
        ours, theirs = ours.filled(0), theirs.filled(0)
    torch.testing.assert_close(ours, theirs, msg=lambda text: f"{label}: {text}", equal_nan=True)


class TestOperators:
    def test_statements(self) -> None:
        def statements(x: mg.MaskedTensor, w: Tensor) -> tuple[Any, ...]:
            y = x @ w
            y @= w
            y **= 2
            y -= 1
            z = w @ x
            z[0] = 5.0
            z[z.mask & (w > 2)] = mg.unspecified
            return y, z, -x, ~(x > 2), abs(x), x.T @ x

        for ours, theirs in zip(
            compiled(statements)[0](poisoned(SQUARE), PLAIN), statements(poisoned(SQUARE), PLAIN), strict=True
        ):
            assert_same(ours, theirs)


class TestOneCompilation:
    def test_masked_input_and_target_forward_and_backward(self) -> None:
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

        def loss_of(x: mg.MaskedTensor, y: mg.MaskedTensor) -> mg.MaskedTensor:
            return F.mse_loss(net(x), y)

        fast, counter = compiled(loss_of)
        data, target = torch.randn(6, 3), torch.randn(6, 2)
        for seen, asked in zip(masks((6, 3)), masks((6, 2)), strict=True):
            x = mg.masked(data.masked_fill(~seen, nan), seen)
            y = mg.masked(target.masked_fill(~asked, inf), asked)
            grads = []
            for function in (fast, loss_of):
                net.zero_grad()
                loss = function(x, y)
                loss.backward()
                grads.append(
                    [loss.tolist(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
                )
            assert (grads[0][0] is None) == (grads[1][0] is None)
            torch.testing.assert_close(grads[0][1:], grads[1][1:])
        assert counter.frame_count == 1

    def test_made_inside_the_graph(self) -> None:
        def function(data: Tensor, mask: Tensor, lengths: Tensor) -> tuple[Any, ...]:
            x = mg.masked(data, mask)
            return x.sum(1), mg.from_nan(data).mean(), mg.from_lengths(data, lengths).amax(1), x.filled(0.0)

        fast, counter = compiled(function)
        for mask in masks((4, 3)):
            arguments = (torch.randn(4, 3).masked_fill(~mask, nan), mask, mask.sum(1))
            for ours, theirs in zip(fast(*arguments), function(*arguments), strict=True):
                assert_same(ours, theirs)
        assert counter.frame_count == 1

    def test_as_an_attribute_of_a_module(self) -> None:
        class Weighted(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.observed = poisoned([1.0, None, 3.0], torch.float32)
                self.scale = nn.Parameter(torch.tensor([2.0, inf, 4.0]))

            def forward(self, x: Tensor) -> mg.MaskedTensor:
                return (self.observed * self.scale * x).sum()

        module = Weighted()
        fast, counter = compiled(module)
        for x in torch.randn(3, 3):
            assert_same(fast(x), module(x))
            fast(x).backward()
        assert module.scale.grad is not None
        assert module.scale.grad[1] == 0
        assert counter.frame_count == 1
