"""torch.compile with a batch that changes its size: one graph, whatever the size and the mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.conformance.outcomes import as_plain
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


def outcome(function: Callable[..., Any], data: Tensor, mask: Tensor) -> list[Tensor]:
    leaf = data.clone().requires_grad_()
    found = function(leaf, mask)
    if found[1].requires_grad:
        found = (*found, torch.autograd.grad(found[1].square().sum(), leaf)[0])
    return list(found)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph_for_every_size(name: str) -> None:
    function = as_plain(FUNCTIONS[name])
    fast = torch.compile(function, backend="eager", fullgraph=True, dynamic=True)
    with mg.count_recompiles() as compilations:
        for size in SIZES[:-1] if name == "attention" else SIZES:  # its cost is that of the square
            inputs = batch(size)
            torch.testing.assert_close(outcome(fast, *inputs), outcome(function, *inputs))
    assert compilations.number == 1, compilations.reasons


def test_a_second_size_is_compiled_once_more_and_then_any_size() -> None:
    function = as_plain(FUNCTIONS["softmax"])
    fast = torch.compile(function, backend="aot_eager", fullgraph=True)
    with mg.count_recompiles() as compilations:
        for size in (5, 7, 11, 3):
            inputs = batch(size)
            torch.testing.assert_close(fast(*inputs), function(*inputs))
    assert compilations.number == 2, compilations.reasons


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
