"""Sparse layouts under torch.compile: one graph, compiled once for all patterns with the same number of entries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg

LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

#: How many blocks (or entries) there are: the same for every pattern.
CAPACITY = 5


def stored(layout: torch.layout) -> mg.MaskedTensor:
    """Random entries of a matrix (4, 6), in blocks of 2 × 2 where the layout has blocks."""
    size = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else (1, 1)
    places = torch.zeros(4 // size[0] * (6 // size[1]), dtype=torch.bool)
    places[torch.randperm(len(places))[:CAPACITY]] = True
    mask = torch.kron(places.reshape(4 // size[0], 6 // size[1]), torch.ones(size, dtype=torch.bool))
    x = mg.masked(torch.randn(4, 6, dtype=torch.float64), mask)
    return x.to_sparse(layout=layout, blocksize=None if size == (1, 1) else size)


class Program(nn.Module):
    """Some operations of each kind, with a stored weight."""

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.pruned, self.scale = stored(layout), nn.Parameter(torch.randn(6, 2, dtype=torch.float64))

    def forward(self, x: mg.MaskedTensor, w: Tensor) -> list[Any]:
        y = (x * 2).exp() / (1 + w.square())
        return [
            *(y, -x + y, (x > 0).to(x.dtype) * y, torch.where(x > 0, x, y), x.relu(), x.T),
            *(y.sum(), y.mean(0), y.amax(1), y.var(1, correction=0), y.norm(), torch.logsumexp(y, 0)),
            *(x @ w.mT, (w @ x.mT).relu(), 2 * x @ w.mT, x.sum() * (x @ w.mT), self.pruned @ self.scale),
            *(y.softmax(1), nn.functional.mse_loss(y, w), nn.functional.huber_loss(x, w)),
            *(x.to_dense() * w, x.filled(1.0) @ w.mT, x.mask.sum() + w, x.num_specified() * w),
        ]


def filled(parts: list[Any]) -> list[Tensor]:
    return [part.filled(0.0) if isinstance(part, mg.MaskedTensor) else part for part in parts]


@pytest.mark.parametrize(
    ("layout", "backend"), [*((layout, "aot_eager") for layout in LAYOUTS), (torch.sparse_csr, "inductor")]
)
def test_one_compilation_for_patterns_of_as_many_entries(layout: torch.layout, backend: str) -> None:
    program = Program(layout)
    fast = torch.compile(program, backend=backend, fullgraph=True)
    with mg.count_recompiles() as compilations:
        for _ in range(3):
            program.pruned = stored(layout)
            x = stored(layout).requires_grad_()
            leaves = [x._values, torch.randn(4, 6, dtype=torch.float64, requires_grad=True), program.scale]
            ours, theirs = fast(x, leaves[1]), program(x, leaves[1])
            for one, other in zip(ours, theirs, strict=True):
                assert type(one) is type(other)
                if isinstance(one, mg.MaskedTensor):
                    assert one.layout == other.layout
                    assert torch.equal(one.mask, other.mask)
            torch.testing.assert_close(filled(ours), filled(theirs))
            found = []
            for parts in (ours, theirs):
                ends = [part for part in filled(parts) if part.requires_grad]
                weights = [torch.linspace(1, 2, end.numel()).reshape(end.shape).to(end) for end in ends]
                found.append(torch.autograd.grad(ends, leaves, weights))
            torch.testing.assert_close(*found)
    assert compilations.number == 1, compilations.reasons


def test_another_number_of_entries_is_compiled_once_more_and_then_never_again() -> None:
    fast = torch.compile(lambda x, w: (x @ w).filled(0.0), backend="eager", fullgraph=True)
    w = torch.randn(6, 3, dtype=torch.float64)

    def call(number: int) -> None:
        mask = torch.arange(24).reshape(4, 6) < number
        x = mg.masked(torch.randn(4, 6, dtype=torch.float64), mask).to_sparse()
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
