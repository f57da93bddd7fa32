"""torch.utils.checkpoint: values, gradients and patterns are those without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import maskgrad as mg
from tests.poison import inf, nan, on

MASK = on([1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1])


def data() -> Tensor:
    torch.manual_seed(0)
    clean = torch.randn(3, 4, dtype=torch.float64)
    return torch.where(MASK, clean, torch.tensor([nan, inf, -inf, 1e38]).double()).requires_grad_()


def test_containers_and_keywords() -> None:
    leaf = data()
    x = mg.masked(leaf, MASK)

    def scaled(given: dict[str, Any], by: Tensor, none: None) -> tuple[Any, ...]:
        assert none is None
        return {"rows": given["x"] * by}, [given["x"].sum(1)], 7

    by = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    rows, sums, seven = checkpoint(scaled, {"x": x}, by, None, use_reentrant=False)
    assert seven == 7
    assert torch.equal(rows["rows"].mask, MASK)
    assert torch.equal(sums[0].mask, MASK.any(1))
    (rows["rows"].sum() + sums[0].sum()).backward()
    assert torch.equal(leaf.grad, torch.where(MASK, 3.0, 0.0).double())
    torch.testing.assert_close(by.grad, torch.where(MASK, data(), 0.0).sum())


def test_dropout_is_repeated() -> None:
    leaf = torch.randn(100, dtype=torch.float64, requires_grad=True)
    kept = torch.arange(100) % 3 > 0
    y = checkpoint(lambda v: F.dropout(v, 0.5), mg.masked(leaf, kept), use_reentrant=False)
    y.sum().backward()
    factors = torch.where(kept, (y.filled(0.0) / leaf).detach(), 0.0)
    torch.testing.assert_close(leaf.grad, factors)


def test_second_derivatives_pass_where_tensors_are_saved() -> None:
    leaf = data()
    y = checkpoint(lambda v: (v**3).sum(), mg.masked(leaf, MASK), use_reentrant=False)
    (slope,) = torch.autograd.grad(y, leaf, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), leaf)
    torch.testing.assert_close(curvature, torch.where(MASK, 6 * data(), 0.0))


def test_compiled_with_plain_arguments() -> None:
    def step(d: Tensor, k: Tensor) -> Tensor:
        out: Tensor = checkpoint(lambda d, k: mg.masked(d, k).mean(), d, k, use_reentrant=False)
        return out

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for mask in (MASK, torch.zeros_like(MASK)):
        ours, eager = data(), data()
        compiled(ours, mask).backward()
        step(eager, mask).backward()
        torch.testing.assert_close(ours.grad, eager.grad)


COMPILED = {
    "rows": lambda v, by: v + by * v.exp(),
    "keyword": lambda v, by: v * by,
    "reduced": lambda v, by: (v * by).sum(1),
    "ends": lambda v, by: (v * by).filled(0.0),
}


@pytest.mark.parametrize("block", COMPILED)
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.jagged], ids=str)
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # Dynamo's, of any input
def test_compiled(block: str, layout: torch.layout) -> None:
    """One graph holds the block: values, masks and gradients are those of the eager run, and of no checkpoint."""
    mask = MASK if layout is not torch.jagged else on([1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 0, 0])

    def masked(leaf: Tensor) -> Any:
        if layout is torch.jagged:
            return mg.from_lengths(leaf, mask.sum(1), layout=layout)
        x = mg.masked(leaf, mask)
        return x if layout is torch.strided else x.to_sparse(layout=layout)

    def step(x: Any, by: Tensor) -> Any:
        options: dict[str, Any] = {"use_reentrant": False}
        given: tuple[Any, ...] = (x, by)
        if block == "keyword":
            given, options = (x,), options | {"by": by}
        return checkpoint(COMPILED[block], *given, **options)

    found = []
    for run in (COMPILED[block], step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        leaf = torch.where(mask, torch.linspace(-1, 1, 12).double().view(3, 4), nan).requires_grad_()
        by = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        y = run(masked(leaf), by)
        y.square().sum().backward()
        found.append((y, leaf.grad, by.grad))
    for y, *slopes in found[1:]:
        expected, *expected_slopes = found[0]
        assert type(y) is type(expected)
        if block != "ends":
            assert (y.layout, y.mask.tolist()) == (expected.layout, expected.mask.tolist())
            y, expected = y.filled(0.0), expected.filled(0.0)  # noqa: PLW2901
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(slopes, expected_slopes)
