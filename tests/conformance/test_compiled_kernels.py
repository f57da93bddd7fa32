"""Kernels in graphs: torch.compile calls our operators on large tensors, where they win, and gives eager results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

import maskgrad as mg
from maskgrad.kernels import KERNELS
from maskgrad.kernels.selection import use_kernels
from tests.poison import inf, nan

#: Just enough entries.
SHAPE = (260, 257)
WEIGHT, BIAS = torch.linspace(0.5, 1.5, SHAPE[1]), torch.linspace(-1, 1, SHAPE[1])

OPERATIONS: dict[str, Callable[[mg.MaskedTensor, Tensor], Any]] = {
    "sum": lambda x, _: x.sum(1),
    "mean": lambda x, _: x.mean(0),
    "mean of everything": lambda x, _: x.mean(),
    "var": lambda x, _: x.var(1),
    "std": lambda x, _: x.std(0, correction=0),
    "softmax": lambda x, _: x.softmax(1),
    "log_softmax": lambda x, _: x.log_softmax(0),
    "logsumexp": lambda x, _: x.logsumexp(1),
    "norm": lambda x, _: x.norm(dim=1),
    "layer_norm": lambda x, _: F.layer_norm(x, SHAPE[1:], WEIGHT.to(x.dtype), BIAS.to(x.dtype)),
    "rms_norm": lambda x, _: F.rms_norm(x, SHAPE[1:], WEIGHT.to(x.dtype)),
    "mse_loss": F.mse_loss,
    "huber_loss": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "exp": lambda x, _: x.exp() * 2,
    "transposed": lambda x, _: x.mT.softmax(1) + x.mT.mean(0),
    "expanded": lambda x, y: (x[:, :1].expand(x.shape) * y).mean(1),
}


def masks() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    some = torch.rand(SHAPE, generator=generator) < 0.5
    some[3], some[:, 5] = False, False
    return [some, torch.zeros(SHAPE).bool(), torch.ones(SHAPE).bool()]


def function_of(name: str) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    operation = OPERATIONS[name]

    def function(x: Tensor, mask: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        result = operation(mg.masked(x, mask), y)
        if isinstance(result, mg.MaskedTensor):
            return result.filled(0.0), result.mask
        return result, mask.any()  # a number

    return function


def outcome(function: Callable[..., Any], mask: Tensor, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(SHAPE, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    leaf = torch.where(
        mask, x, torch.tensor([nan, inf])[torch.arange(SHAPE[1]) % 2].to(dtype)
    ).requires_grad_()
    values, found = function(leaf, mask, y)
    weight = torch.linspace(0.5, 1.5, values.numel(), dtype=dtype).reshape(values.shape)
    (gradient,) = torch.autograd.grad(values, leaf, torch.where(values.isfinite(), weight, 0))
    assert not gradient[~mask].count_nonzero()
    return [found, values, gradient]


def check(name: str, backend: str, dtype: torch.dtype) -> None:
    function = function_of(name)
    fast = torch.compile(function, backend=backend, fullgraph=True)
    with mg.count_recompiles() as compilations:
        for mask in masks():
            ours, theirs = outcome(fast, mask, dtype), outcome(function, mask, dtype)
            assert torch.equal(ours[0], theirs[0])
            tolerance = 1e-9 if dtype is torch.float64 else 2e-5
            torch.testing.assert_close(ours[1:], theirs[1:], rtol=tolerance, atol=tolerance, equal_nan=True)
    assert compilations.number == 1, compilations.reasons


@pytest.mark.parametrize("name", OPERATIONS)
def test_graphs_with_our_operators_give_eager_results(name: str) -> None:
    check(name, "aot_eager", torch.float64)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "exp"])
def test_the_default_backend(name: str) -> None:
    check(name, "inductor", torch.float32)


def operators_in(function: Callable[..., Any], *arguments: Tensor, **options: Any) -> set[str]:
    """Our operators in the graph of a function."""
    found: set[str] = set()

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        for node in graph.graph.nodes:
            name = str(getattr(node.target, "_qualified_op_name", node.target))
            found.update(kernel for kernel in KERNELS if name.endswith(f"maskgrad::{kernel}"))
        return graph

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True, **options)(*arguments)
    return found


class TestWhereTheyAreCalled:
    arguments = (torch.randn(SHAPE), masks()[0], torch.randn(SHAPE))

    def test_on_large_tensors(self) -> None:
        assert operators_in(function_of("softmax"), *self.arguments) >= {"masked_filling"}
        assert operators_in(function_of("mean"), *self.arguments) >= {"masked_mean"}

    def test_not_on_small_or_other_tensors(self) -> None:
        small = tuple(x[:4] for x in self.arguments)
        assert not operators_in(function_of("softmax"), *small)
        halves = (self.arguments[0].bfloat16(), *self.arguments[1:])
        assert not operators_in(function_of("softmax"), *halves)

    def test_not_where_the_size_is_a_symbol(self) -> None:
        assert not operators_in(function_of("mean"), *self.arguments, dynamic=True)

    def test_not_under_vmap(self) -> None:
        def function(x: Tensor, mask: Tensor) -> Tensor:
            return vmap(lambda v, m: mg.masked(v, m).softmax(1).filled(0.0))(x, mask)

        x, mask = torch.randn(2, *SHAPE), torch.stack(masks()[:2])
        assert not operators_in(function, x, mask)
        fast = torch.compile(function, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(fast(x, mask), function(x, mask))

    def test_not_where_the_reference_is_forced(self) -> None:
        with use_kernels("reference"):
            assert not operators_in(function_of("softmax"), *self.arguments)

    def test_never_in_an_exported_program(self) -> None:
        class Model(torch.nn.Module):
            def forward(self, x: Tensor, mask: Tensor) -> Tensor:
                return mg.masked(x, mask).softmax(1).filled(0.0)

        for strict in (False, True):
            program = torch.export.export(Model(), self.arguments[:2], strict=strict)
            assert "maskgrad" not in str(program.graph)
