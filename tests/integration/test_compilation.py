"""torch.compile: one graph, one compilation for all masks, the numbers of eager execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.poison import inf, nan, poisoned


def masks(shape: tuple[int, ...]) -> list[Tensor]:
    """Ten masks, the empty and the full one among them."""
    return [torch.zeros(shape).bool(), torch.ones(shape).bool(), *(torch.rand(shape) < 0.5 for _ in range(8))]


def assert_compiled_once(function: Callable[..., Any], leaves: list[Tensor], inputs: list[Any]) -> None:
    """Results, and the gradients of the differentiable ones, are the eager ones for all inputs."""
    fast = torch.compile(function, backend="aot_eager", fullgraph=True)
    with mg.count_recompiles() as compilations:
        for given in inputs:
            found = []
            for run in (fast, function):
                results = run(*given)
                patterns = [part.mask for part in results if isinstance(part, mg.MaskedTensor)]
                plain = [part.filled(0) if isinstance(part, mg.MaskedTensor) else part for part in results]
                total = sum(part.sum() for part in plain if part.requires_grad)
                slopes = torch.autograd.grad(total, leaves) if leaves else ()
                found.append([*map(type, results), *patterns, *plain, *slopes])
            number = len(results)
            assert found[0][:number] == found[1][:number]
            torch.testing.assert_close(found[0][number:], found[1][number:], equal_nan=True)
    assert compilations.number == 1, compilations.reasons


def test_statements() -> None:
    def statements(x: mg.MaskedTensor, w: Tensor) -> tuple[Any, ...]:
        y = x @ w
        y @= w
        y **= 2
        y -= 1
        z = w @ x
        z[0] = 5.0
        z[z.mask & (w > 2)] = mg.unspecified
        return y, z, -x, ~(x > 2), abs(x), x.T @ x

    x = poisoned([[1.0, 2.0, None], [3.0, None, 4.0], [None, 5.0, 6.0]])
    assert_compiled_once(statements, [], [(x, torch.rand(3, 3).double() * 4)])


def test_masked_input_and_target_forward_and_backward() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    data, target = torch.randn(6, 3), torch.randn(6, 2)
    inputs = [
        (mg.masked(data.masked_fill(~seen, nan), seen), mg.masked(target.masked_fill(~asked, inf), asked))
        for seen, asked in zip(masks((6, 3)), masks((6, 2)), strict=True)
    ]
    assert_compiled_once(lambda x, y: [F.mse_loss(net(x), y)], [*net.parameters()], inputs)


def test_made_inside_the_graph() -> None:
    def function(data: Tensor, mask: Tensor, lengths: Tensor) -> tuple[Any, ...]:
        x = mg.masked(data, mask)
        return x.sum(1), mg.from_nan(data).mean(), mg.from_lengths(data, lengths).amax(1), x.filled(0.0)

    inputs = [(torch.randn(4, 3).masked_fill(~k, nan), k, k.sum(1)) for k in masks((4, 3))]
    assert_compiled_once(function, [], inputs)
