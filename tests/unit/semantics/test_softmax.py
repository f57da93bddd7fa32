"""Softmax: infinities, integers, dimensions that are not named, whole slices, and Gumbel noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg

# Anomaly mode announces itself; forward-mode derivatives make torch use its own deprecated scripts.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
]

nan, inf = float("nan"), float("inf")
GARBAGE = (nan, inf, -inf, 1e38, 7.0)
MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0]]).bool()


def leaf(garbage: float = nan, mask: Tensor = MASK, dtype: torch.dtype = torch.float64) -> Tensor:
    x = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.where(mask, x, garbage).to(dtype).requires_grad_()


def by_deletion(function: Callable[[Tensor], Tensor], x: Tensor, mask: Tensor) -> Tensor:
    """Row by row."""
    result = torch.zeros(x.shape, dtype=function(torch.ones(1, dtype=x.dtype)).dtype)
    for row, here in zip(range(len(x)), mask, strict=True):
        if here.any():
            places = (torch.full((int(here.sum()),), row), here.nonzero().squeeze(1))
            result = result.index_put(places, function(x[row, here]))
    return result


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_slices_that_are_there_or_not(name: str, dtype: torch.dtype, garbage: float) -> None:
    mask = torch.tensor([True, False, True, False])[:, None].expand(4, 20)
    weights = torch.randn(4, 20, dtype=dtype)
    clean, dirty = leaf(0.0, mask, dtype), leaf(garbage, mask, dtype)
    for specified in (0.5, -inf):
        with torch.no_grad():
            clean[0, 3] = dirty[0, 3] = specified
        result = getattr(mg.masked(dirty, mask), name)(1)
        weight = torch.where(result.filled(0.0).isfinite(), weights, 0)
        first = torch.autograd.grad((result**2 * weight).filled(0.0).sum(), dirty, create_graph=True)[0]
        right = getattr(clean, name)(1)
        wanted = torch.autograd.grad((right**2 * weight * mask).sum(), clean, create_graph=True)[0]
        torch.testing.assert_close(result.filled(0.0), torch.where(mask, right, 0))
        torch.testing.assert_close(first, wanted, equal_nan=True)
        assert not first[~mask].count_nonzero()
        if specified == 0.5:
            second, expected = (
                torch.autograd.grad(g.sum(), x)[0] for g, x in ((first, dirty), (wanted, clean))
            )
            torch.testing.assert_close(second, expected)
            assert not second[~mask].count_nonzero()


def test_an_implicit_dimension_is_chosen_with_torchs_warning() -> None:
    x = mg.masked(leaf(), MASK)
    with pytest.warns(UserWarning, match="Implicit dimension choice"):
        assert F.softmax(x).filled(0.0).equal(F.softmax(x, 1).filled(0.0))
    with pytest.raises(TypeError, match="dim"):
        x.softmax()


def test_integers_are_refused_as_in_torch_unless_a_dtype_is_given() -> None:
    x = mg.masked(torch.tensor([1, 2, 9]), torch.tensor([True, True, False]))
    with pytest.raises(RuntimeError, match="not implemented for 'Long'"):
        x.softmax(0)
    assert x.softmax(0, torch.float64).tolist()[2] is None
    torch.testing.assert_close(
        x.softmax(0, torch.float64)[:2].filled(0.0), torch.tensor([1.0, 2.0]).double().softmax(0)
    )


def test_what_torch_says_of_specified_infinities_stands() -> None:
    x = torch.tensor([[-inf, -inf, 3.0], [-inf, 1.0, 3.0], [inf, 1.0, 3.0]])
    mask = torch.tensor([[True, True, False]])
    result = mg.masked(x, mask).softmax(1)
    right = by_deletion(lambda row: row.softmax(0), x, mask.expand(3, 3))
    torch.testing.assert_close(result.filled(0.0), right, equal_nan=True)
    safe = torch.ops.aten._safe_softmax(mg.masked(x, mask), 1)
    assert safe.tolist()[0] == [0.0, 0.0, None]


def test_gumbel_softmax_draws_specified_classes_only() -> None:
    mask = torch.tensor([True, False, True, False])
    x = torch.tensor([0.0, inf, 0.0, nan], requires_grad=True)
    draws = F.gumbel_softmax(mg.masked(x.expand(400, 4), mask[None]), hard=True)
    assert draws.mask.equal(mask.expand(400, 4))
    counts = draws.filled(0.0).sum(0)
    assert counts[mask].sum() == 400
    assert counts[mask].min() > 120
    (grad,) = torch.autograd.grad((draws.filled(0.0) * torch.arange(4.0)).sum(), x)
    assert grad.isfinite().all()
    assert not grad[~mask].count_nonzero()
    assert grad[0] < 0 < grad[2]


def test_gumbel_softmax_is_torchs_on_complete_data() -> None:
    x = torch.randn(5, 3)
    for hard in (False, True):
        torch.manual_seed(1)
        right = F.gumbel_softmax(x, 0.5, hard, dim=0)
        torch.manual_seed(1)
        result = F.gumbel_softmax(mg.masked(x, torch.ones(5, 3, dtype=torch.bool)), 0.5, hard, dim=0)
        torch.testing.assert_close(result.filled(0.0), right)
    with pytest.warns(UserWarning, match="deprecated and has no effect"):
        F.gumbel_softmax(mg.masked(x, torch.ones(5, 3, dtype=torch.bool)), eps=1e-8)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize(
    "function", [torch.softmax, torch.log_softmax], ids=lambda function: function.__name__
)
def test_compiled_rows_that_are_whole_or_not_there(function: Any, dim: int, backend: str) -> None:
    """Along the last dimension, the mask repeats; along the others, a slice may have nothing."""

    def step(x: torch.Tensor, mask: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (function(mg.masked(x, mask), dim).filled(0.0) * weight).sum()

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(3, 4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.bool)[..., None]
    clean = x.clone().requires_grad_()
    expected = step(clean, mask, weight)
    slope = torch.autograd.grad(expected, clean)[0]
    for garbage in (nan, float("inf"), 1e38):
        spoilt = torch.where(mask, x, garbage).requires_grad_()
        result = compiled(spoilt, mask, weight)
        torch.testing.assert_close(result, expected)
        found = torch.autograd.grad(result, spoilt)[0]
        torch.testing.assert_close(found, slope)
        assert not found[~mask.expand(x.shape)].any()
