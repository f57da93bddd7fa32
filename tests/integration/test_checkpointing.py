"""torch.utils.checkpoint: values, gradients and patterns are those without it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import maskgrad as mg
from tests.poison import nan, on

MASK = on([1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 0, 0])


def step(run: Any, x: Any, by: Tensor, leaf: Tensor) -> list[Any]:
    """Blocks with containers, keywords and numbers, that begin or end a mask."""

    def block(given: dict[str, Any], by: Tensor, none: None) -> tuple[Any, ...]:
        return {"rows": given["x"] + by * given["x"].exp()}, [given["x"].square().sum(1)], 7

    rows, sums, seven = run(block, {"x": x}, by, none=None, use_reentrant=False)
    assert seven == 7
    product = run(lambda v, by: v * by, x, by=by, use_reentrant=False)
    made = run(lambda d, k: mg.masked(d, k).mean(), leaf, MASK, use_reentrant=False)
    return [rows["rows"], *sums, product, run(lambda v: v.filled(0.0), product, use_reentrant=False), made]


def plainly(function: Any, *args: Any, use_reentrant: bool, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


@pytest.mark.layouts
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.jagged], ids=str)
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # Dynamo's, of any input
def test_results_and_derivatives_are_those_without(layout: torch.layout) -> None:
    """Eagerly, twice; and in one graph."""
    compiled = torch.compile(functools.partial(step, checkpoint), backend="aot_eager", fullgraph=True)
    found = []
    for run in (functools.partial(step, plainly), functools.partial(step, checkpoint), compiled):
        leaf = torch.where(MASK, torch.linspace(-1, 1, 12).double().view(3, 4), nan).requires_grad_()
        x: Any = mg.masked(leaf, MASK)
        if layout is not torch.strided:
            x = mg.from_lengths(leaf, MASK.sum(1), layout=layout) if layout is torch.jagged else x.to_sparse()
        by = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        results = run(x, by, leaf)
        assert results[0].layout == results[2].layout == x.layout
        parts = [part.filled(0.0) if isinstance(part, mg.MaskedTensor) else part for part in results]
        total = sum(part.square().sum() for part in parts)
        slopes = torch.autograd.grad(total, (leaf, by), create_graph=run is not compiled)
        if run is not compiled:
            (curvature,) = torch.autograd.grad(slopes[0].sum(), leaf)
        found.append([*(part.mask for part in results[:3]), *parts, *slopes, curvature])
    for others in found[1:]:
        torch.testing.assert_close(others, found[0])
