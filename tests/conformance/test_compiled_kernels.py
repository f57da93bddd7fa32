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
from tests.conformance.outcomes import as_plain
from tests.poison import inf, nan

#: Just enough entries.
SHAPE = (260, 257)

OPERATIONS: dict[str, Callable[[mg.MaskedTensor, Tensor], Any]] = {
    "sum": lambda x, _: x.sum(1),
    "mean": lambda x, _: x.mean(0),
    "mean of everything": lambda x, _: x.mean(),
    "var": lambda x, _: x.var(1),
    "softmax": lambda x, _: x.softmax(1),
    "log_softmax": lambda x, _: x.log_softmax(0),
    "layer_norm": lambda x, y: F.layer_norm(x, SHAPE[1:], y[0], y[1]),
    "mse_loss": F.mse_loss,
    "exp": lambda x, _: x.exp() * 2,
    "transposed": lambda x, _: x.mT.softmax(1) + x.mT.mean(0),
    "expanded": lambda x, y: (x[:, :1].expand(x.shape) * y).mean(1),
}


def masks() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    some = torch.rand(SHAPE, generator=generator) < 0.5
    some[3], some[:, 5] = False, False
    return [some, torch.zeros(SHAPE).bool(), torch.ones(SHAPE).bool()]


def outcome(function: Callable[..., Any], mask: Tensor, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(SHAPE, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    garbage = torch.tensor([nan, inf])[torch.arange(SHAPE[1]) % 2].to(dtype)
    leaf = torch.where(mask, x, garbage).requires_grad_()
    found, values = function(leaf, mask, y)
    weight = torch.linspace(0.5, 1.5, values.numel(), dtype=dtype).reshape(values.shape)
    (gradient,) = torch.autograd.grad(values, leaf, torch.where(values.isfinite(), weight, 0))
    assert not gradient[~mask].count_nonzero()
    return [found, values, gradient]


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "aot_eager") for name in OPERATIONS), *((name, "inductor") for name in ("softmax", "exp"))],
)
def test_graphs_with_our_operators_give_eager_results(name: str, backend: str) -> None:
    function = as_plain(OPERATIONS[name])
    fast = torch.compile(function, backend=backend, fullgraph=True)
    dtype, tolerance = (torch.float64, 1e-9) if backend == "aot_eager" else (torch.float32, 2e-5)
    with mg.count_recompiles() as compilations:
        for mask in masks():
            ours, theirs = outcome(fast, mask, dtype), outcome(function, mask, dtype)
            assert torch.equal(ours[0], theirs[0])
            torch.testing.assert_close(ours[1:], theirs[1:], rtol=tolerance, atol=tolerance, equal_nan=True)
    assert compilations.number == 1, compilations.reasons


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


def test_operators_are_called_on_large_tensors_of_known_size_alone() -> None:
    def mapped(x: Tensor, mask: Tensor) -> Tensor:
        return vmap(lambda v, m: mg.masked(v, m).softmax(1).filled(0.0))(x, mask)

    mean, softmax = as_plain(OPERATIONS["mean"]), as_plain(OPERATIONS["softmax"])
    arguments = x, mask, y = torch.randn(SHAPE), masks()[0], torch.randn(SHAPE)
    assert operators_in(softmax, *arguments) >= {"masked_filling"}
    assert operators_in(mean, *arguments) >= {"masked_mean"}
    assert not operators_in(softmax, *(x[:4] for x in arguments))
    assert not operators_in(softmax, x.bfloat16(), mask, y)
    assert not operators_in(mean, *arguments, dynamic=True)
    assert not operators_in(mapped, torch.stack([x, y]), torch.stack(masks()[:2]))
    with use_kernels("reference"):
        assert not operators_in(softmax, *arguments)
