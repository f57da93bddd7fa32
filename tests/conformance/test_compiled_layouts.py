"""Sparse layouts under torch.compile: one graph, compiled once for all patterns with the same number of entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg

BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)
LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, *BLOCKED)

#: How many blocks (or entries) there are: the same for every pattern.
CAPACITY = 5


def patterns(layout: torch.layout, number: int = 4) -> list[Tensor]:
    """Masks (4, 6) with the same number of entries, in blocks of 2 × 2 where the layout has blocks."""
    generator = torch.Generator().manual_seed(0)
    height, width = (2, 2) if layout in BLOCKED else (1, 1)
    found = []
    for _ in range(number):
        places = torch.zeros(4 // height * (6 // width), dtype=torch.bool)
        places[torch.randperm(len(places), generator=generator)[:CAPACITY]] = True
        mask = places.reshape(4 // height, 6 // width)
        found.append(mask.repeat_interleave(height, 0).repeat_interleave(width, 1))
    return found


def stored(mask: Tensor, layout: torch.layout, requires_grad: bool = True) -> mg.MaskedTensor:
    """Random entries at ``mask``; a leaf."""
    x = mg.masked(torch.randn(mask.shape, dtype=torch.float64), mask)
    kept = x.to_sparse(layout=layout, blocksize=(2, 2) if layout in BLOCKED else None)
    return kept.requires_grad_(requires_grad)


def parts_of(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def filled(part: Any) -> Tensor:
    plain: Tensor = part.filled(0.0) if isinstance(part, mg.MaskedTensor) else part
    return plain


def assert_same(ours: Any, theirs: Any, what: str) -> None:
    for one, other in zip(parts_of(ours), parts_of(theirs), strict=True):
        assert type(one) is type(other), what
        if isinstance(one, mg.MaskedTensor):
            assert one.layout == other.layout, what
            assert torch.equal(one.mask, other.mask), what
        torch.testing.assert_close(filled(one), filled(other), msg=lambda text: f"{what}: {text}")


def check(
    function: Callable[..., Any], layout: torch.layout, weight: Tensor, backend: str = "aot_eager"
) -> None:
    """Eager and compiled agree on several patterns, forward and backward; one compilation."""
    fast = torch.compile(function, backend=backend, fullgraph=True)
    with mg.count_recompiles() as compilations:
        for mask in patterns(layout):
            x = stored(mask, layout)
            w = weight.clone().requires_grad_()
            ours, theirs = fast(x, w), function(x, w)
            assert_same(ours, theirs, str(layout))
            found = []
            for result in (ours, theirs):
                ends = [filled(part) for part in parts_of(result) if part.requires_grad]
                weights = [torch.linspace(1, 2, end.numel()).reshape(end.shape).to(end) for end in ends]
                found.append(torch.autograd.grad(ends, [x._values, w], weights, allow_unused=True))
            torch.testing.assert_close(found[0], found[1])
    assert compilations.number == 1, compilations.reasons


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
class TestOneCompilation:
    def test_entry_by_entry(self, layout: torch.layout) -> None:
        def function(x: mg.MaskedTensor, w: Tensor) -> list[mg.MaskedTensor]:
            y = (x * 2).exp() / (1 + w.square())
            return [y, -x + y, (x > 0).to(x.dtype) * y, torch.where(x > 0, x, y), x.relu()]

        check(function, layout, torch.randn(4, 6, dtype=torch.float64))

    def test_reductions(self, layout: torch.layout) -> None:
        def function(x: mg.MaskedTensor, w: Tensor) -> list[Any]:
            y = x * w
            return [y.sum(), y.mean(0), y.amax(1), y.var(1, correction=0), y.norm(), torch.logsumexp(y, 0)]

        check(function, layout, torch.randn(4, 6, dtype=torch.float64))

    def test_products(self, layout: torch.layout) -> None:
        def function(x: mg.MaskedTensor, w: Tensor) -> list[Any]:
            return [x @ w, (w.mT @ x.mT).relu(), 2 * x @ w, x.sum() * (x @ w)]

        check(function, layout, torch.randn(6, 3, dtype=torch.float64))

    def test_softmax_and_losses(self, layout: torch.layout) -> None:
        def function(x: mg.MaskedTensor, w: Tensor) -> list[Any]:
            y = x * w
            return [y.softmax(1), nn.functional.mse_loss(y, w), nn.functional.huber_loss(x, w)]

        check(function, layout, torch.randn(4, 6, dtype=torch.float64))

    def test_made_dense_and_turned_round(self, layout: torch.layout) -> None:
        def function(x: mg.MaskedTensor, w: Tensor) -> list[Any]:
            return [x.to_dense() * w, x.filled(1.0) @ w.mT, x.T, x.mask.sum() + w, x.num_specified() * w]

        check(function, layout, torch.randn(4, 6, dtype=torch.float64))

    def test_as_an_attribute_of_a_module(self, layout: torch.layout) -> None:
        class Weighted(nn.Module):
            def __init__(self, pruned: mg.MaskedTensor) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(6, 2, dtype=torch.float64))
                self.pruned = pruned

            def forward(self, x: Tensor) -> Tensor:
                return x @ (self.pruned @ self.scale).filled(0.0)

        masks = patterns(layout)
        module = Weighted(stored(masks[0], layout, False))
        fast = torch.compile(module, backend="aot_eager", fullgraph=True)
        with mg.count_recompiles() as compilations:
            for mask in masks:
                module.pruned = stored(mask, layout, False)
                x = torch.randn(3, 4, dtype=torch.float64)
                assert_same(fast(x), module(x), str(layout))
                found = [torch.autograd.grad(run(x).sum(), module.scale)[0] for run in (fast, module)]
                torch.testing.assert_close(*found)
        assert compilations.number == 1, compilations.reasons


def test_the_default_backend() -> None:
    def function(x: mg.MaskedTensor, w: Tensor) -> list[Any]:
        return [(x @ w).relu().mean(1), (2 * x).softmax(1)]

    check(function, torch.sparse_csr, torch.randn(6, 3, dtype=torch.float64), "inductor")


def test_another_number_of_entries_is_compiled_once_more_and_then_never_again() -> None:
    fast = torch.compile(lambda x, w: (x @ w).filled(0.0), backend="eager", fullgraph=True)
    w = torch.randn(6, 3, dtype=torch.float64)

    def call(number: int) -> None:
        x = stored(torch.arange(24).reshape(4, 6) < number, torch.sparse_coo, False)
        torch.testing.assert_close(fast(x, w), x.filled(0.0) @ w)

    call(7)
    call(11)  # from here on the number is a symbol
    with mg.assert_no_recompile():
        for number in (5, 13, 20, 24):
            call(number)


def test_from_the_sparse_gradient_of_an_embedding() -> None:
    """The entries of a gradient enter a graph as a MaskedTensor; torch's sparse tensors cannot."""
    fast = torch.compile(lambda g: (g * g).sum(), backend="eager", fullgraph=True)
    table = torch.ones(10, 2, requires_grad=True)
    for rows in ([1, 1, 7], [0, 9, 9]):
        (gradient,) = torch.autograd.grad(
            nn.functional.embedding(torch.tensor(rows), table, sparse=True).sum(), table
        )
        assert fast(mg.from_sparse(gradient)) == 10
