"""torch.compile with a batch that changes its size: one graph, whatever the size and the mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.poison import nan

WIDTH = 6
SIZES = (5, 2, 9, 33, 3000)  # the last one is large enough for compiled kernels, were its size known

LAYER, TABLE = nn.Linear(WIDTH, 4).double(), torch.linspace(-1, 1, 20).reshape(10, 2).double()

#: Functions of masked rows (B, 6).
FUNCTIONS: dict[str, Callable[[mg.MaskedTensor], Any]] = {
    "elementwise": lambda x: (x * 2).exp() - x.sigmoid(),
    "reductions": lambda x: torch.stack(
        [x.mean(1), x.sum(1), x.amax(1), x.var(1, correction=0), x.norm(dim=1)]
    ),
    "over the batch": lambda x: torch.cat([x.mean(0), x.std(0, correction=0), x.logsumexp(0)]),
    "softmax": lambda x: x.softmax(1) + x.log_softmax(0),
    "normalization": lambda x: F.layer_norm(x, (WIDTH,)) + F.batch_norm(x, None, None, training=True),
    "linear": lambda x: LAYER(x).relu(),
    "products": lambda x: torch.einsum("bi,bj->ij", x, x) @ x.T,
    "tensordot": lambda x: torch.tensordot(x, x, ([0], [0])),
    "losses": lambda x: F.mse_loss(x, x.flip(0)) + F.huber_loss(x, x * 2),
    "views and joins": lambda x: torch.cat([x, x.flip(0)], 1).reshape(-1, 2, WIDTH).transpose(0, 1),
    "indexing": lambda x: torch.where(x > 0, x, x.new_zeros(()))[:, 1:],
    "sorting": lambda x: x.sort(1).values + x.topk(2, 1).values[:, :1],
    "scans": lambda x: x.cumsum(0) + x.cummax(1).values,
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "embeddings": lambda x: F.embedding((x > 0).long(), TABLE),
}


def batch(size: int) -> tuple[Tensor, Tensor]:
    data = torch.randn(size, WIDTH, dtype=torch.float64)
    mask = torch.rand(size, WIDTH) < 0.7
    return torch.where(mask, data, nan), mask


def run(function: Callable[..., Any], data: Tensor, mask: Tensor) -> list[Tensor]:
    leaf = data.clone().requires_grad_()
    values, found = function(leaf, mask)
    if not values.requires_grad:
        return [found, values]
    return [found, values, torch.autograd.grad(values.square().sum(), leaf)[0]]


def of_plain(name: str) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    operation = FUNCTIONS[name]

    def function(data: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        result = operation(mg.masked(data, mask))
        if isinstance(result, mg.MaskedTensor):
            return result.filled(0.0), result.mask
        return result, mask.any()  # a number

    return function


def assert_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[1:], theirs[1:])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph_for_every_size(name: str) -> None:
    if name == "attention":
        sizes: tuple[int, ...] = SIZES[:-1]  # its cost is that of the square
    else:
        sizes = SIZES
    function = of_plain(name)
    fast = torch.compile(function, backend="eager", fullgraph=True, dynamic=True)
    with mg.count_recompiles() as compilations:
        for size in sizes:
            inputs = batch(size)
            assert_same(run(fast, *inputs), run(function, *inputs))
    assert compilations.number == 1, compilations.reasons


@pytest.mark.parametrize("how", ["marked", "found out"])
def test_other_ways_to_say_so(how: str) -> None:
    function = of_plain("softmax")
    fast = torch.compile(function, backend="aot_eager", fullgraph=True)
    first, *others = (batch(size) for size in (5, 7, 11, 3))
    if how == "marked":
        for tensor in first:
            torch._dynamo.mark_dynamic(tensor, 0)
        values, mask = fast(*first)  # not a clone of it
        assert_same([mask, values], list(reversed(function(*first))))
    else:
        run(fast, *first)
        run(fast, *others.pop(0))
    with mg.count_recompiles() as compilations:
        for inputs in others:
            data, mask = inputs
            ours, theirs = fast(data, mask), function(data, mask)
            assert_same([ours[1], ours[0]], [theirs[1], theirs[0]])
    assert compilations.number <= (how == "found out"), (
        compilations.reasons
    )  # without gradients: compiled once more


def test_masked_arguments_of_changing_sizes() -> None:
    def loss(x: mg.MaskedTensor, y: Tensor) -> Tensor:
        return F.mse_loss(LAYER(x), y)

    fast = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=True)
    with mg.count_recompiles() as compilations:
        for size in SIZES:
            x, y = mg.masked(*batch(size)), torch.randn(size, 4).double()
            found = [torch.autograd.grad(function(x, y), LAYER.weight)[0] for function in (fast, loss)]
            torch.testing.assert_close(*found)
    assert compilations.number == 1, compilations.reasons
