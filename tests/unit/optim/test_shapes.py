"""Parameters without entries, with unusual memory order, and stored MaskedTensors, under every optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad import attach_gradient
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.optim.optimizer import MaskedOptimizer
from tests.poison import on
from tests.unit.optim.kinds import coo, every_kind
from tests.unit.optim.optimizers import WITH_ROW_STATE, every_optimizer, every_plain_optimizer


def states_of(ours: type[MaskedOptimizer]) -> list[str]:
    return ["full", "row"] if ours.__name__ in WITH_ROW_STATE else ["full"]


@pytest.mark.parametrize("size", [(0,), (0, 3), (3, 0)])
@every_plain_optimizer
def test_parameters_without_entries(
    size: tuple[int, ...], ours: type[MaskedOptimizer], theirs: Any, options: dict[str, Any]
) -> None:
    for state in states_of(ours):
        p = nn.Parameter(torch.zeros(size))
        optimizer = ours([p], state=state, **options)
        nothing = torch.zeros(size)
        for gradient in (
            nothing,
            nothing.to_sparse(),
            nothing.to_sparse(1),
            masked(nothing, torch.zeros(size, dtype=torch.bool)),
        ):
            attach_gradient(p, gradient)
            optimizer.step()
        assert p.shape == size
        assert all(not value.isnan().any() for value in optimizer.state.get(p, {}).values())


@every_kind
@every_plain_optimizer
def test_memory_order_does_not_matter(
    kind: Callable[[Tensor], Tensor | MaskedTensor],
    ours: type[MaskedOptimizer],
    theirs: Any,
    options: dict[str, Any],
) -> None:
    start = torch.randn(4, 6)
    gradients = [torch.where(torch.rand(4, 3, 1) < 0.5, torch.randn(4, 3, 2), 0).view(4, 6) for _ in range(3)]
    for state in states_of(ours):
        if state == "row" and options.get("centered"):
            continue
        arrived = []
        for order in (start.clone(), start.t().contiguous().t(), torch.randn(4, 12)[:, ::2].copy_(start)):
            p = nn.Parameter(order)
            optimizer = ours([p], state=state, **options)
            for gradient in gradients:
                attach_gradient(p, kind(gradient))
                optimizer.step()
            arrived.append(p.detach())
        for other in arrived[1:]:
            torch.testing.assert_close(arrived[0], other, rtol=1e-4, atol=1e-5)


@every_plain_optimizer
def test_a_sparse_parameter_is_trained_as_the_entries_it_stores(
    ours: type[MaskedOptimizer], theirs: Any, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    mask = on([1, 0, 1], [0, 1, 1])
    start, data = torch.rand(2, 3), torch.rand(3, 4)
    x = masked(start, mask).to_sparse().detach().requires_grad_()
    dense = start.clone().requires_grad_()
    stored, spread = ours([x], **options), ours([dense], **options)
    for _ in range(3):
        stored.zero_grad()
        (x @ data).square().sum().backward()
        stored.step()
        spread.zero_grad()
        (mg.masked(dense, mask) @ data).square().sum().backward()
        attach_gradient(dense, mg.masked(dense.grad, mask))
        spread.step()
    torch.testing.assert_close(x.filled(0), torch.where(mask, dense.detach(), 0))
    assert torch.equal(dense[~mask], start[~mask])


@every_optimizer
def test_the_gradient_is_not_written(
    ours: type[MaskedOptimizer], theirs: Any, options: dict[str, Any]
) -> None:
    p = nn.Parameter(torch.ones(3, 2))
    optimizer = ours([p], **options)
    dense, rows = torch.randn(3, 2), coo([[2, 0]], torch.randn(2, 2), (3, 2))
    mask = torch.rand(3, 2) < 0.5
    under = masked(dense.clone(), mask)
    kept = dense.clone(), rows.clone(), under.filled(7.0).clone()
    for gradient in (dense, rows, under, dense, rows):
        attach_gradient(p, gradient)
        optimizer.step()
    assert torch.equal(dense, kept[0])
    assert torch.equal(rows._values(), kept[1]._values())
    assert torch.equal(under.filled(7.0), kept[2])


@every_optimizer
def test_a_tensor_without_sparse_dimensions_lists_the_whole_parameter(
    ours: type[MaskedOptimizer], theirs: Any, options: dict[str, Any]
) -> None:
    start, values = torch.randn(3, 2), torch.randn(2, 3, 2)
    for state in states_of(ours):
        if state == "row" and options.get("centered"):
            continue
        p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
        # one by one, as the engine does it
        a, b = ours([p], state=state, **options), ours([q], state=state, foreach=False, **options)
        attach_gradient(p, torch.sparse_coo_tensor(torch.empty(0, 2, dtype=torch.int64), values, (3, 2)))
        q.grad = values.sum(0)
        a.step()
        b.step()
        assert torch.equal(p, q)


@pytest.mark.parametrize("state", ["full", "row"])
@pytest.mark.parametrize("name", ["LAMB", "Adam"])
def test_large_masked_updates_are_those_of_dense_ones(name: str, state: str) -> None:
    # More entries than one piece of the engine: norms are of all of them, and rows are not cut.
    start, gradient = torch.randn(300, 1000), torch.randn(300, 1000)
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    a, b = (getattr(mg.optim, name)([param], lr=0.1, state=state) for param in (p, q))
    for _ in range(2):
        attach_gradient(p, masked(gradient, torch.ones(300, 1000, dtype=torch.bool)))
        q.grad = gradient
        a.step()
        b.step()
    torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
