"""Random operations: torch's numbers for a seed, the pattern unchanged, nothing drawn from under the mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

import maskgrad as mg

nan, inf = float("nan"), float("inf")
GARBAGE = (nan, inf, -inf, 1e38)
SHAPE = (3, 4, 5)
MASK = torch.rand(SHAPE, generator=torch.Generator().manual_seed(0)) < 0.6


def seeded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    torch.manual_seed(7)
    return function(*args, **kwargs)


MODULES = (
    nn.Dropout(), nn.Dropout(inplace=True), nn.Dropout1d(), nn.AlphaDropout(), nn.FeatureAlphaDropout(), nn.RReLU(),
    nn.RReLU(inplace=True),
)  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=repr)
def test_modules_work_unmodified(module: nn.Module) -> None:
    x = mg.masked(torch.where(MASK, torch.randn(SHAPE), nan), MASK)
    before = x.clone()
    result = module(x)
    assert result.mask.equal(MASK)
    assert (result is x) == getattr(module, "inplace", False)
    if not isinstance(module, nn.RReLU):
        result = module.eval()(before)
        torch.testing.assert_close(result.filled(0.0), before.filled(0.0))
    module.train()


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("normal_", (1.0, 2.0)), ("uniform_", (-1.0, 1.0)), ("exponential_", (2.0,)), ("cauchy_", ()),
        ("log_normal_", ()), ("geometric_", (0.5,)), ("random_", (3, 9)), ("bernoulli_", ()), ("bernoulli_", (0.2,)),
    ],
)  # fmt: skip
def test_methods_that_rewrite_all_values(name: str, args: tuple[Any, ...]) -> None:
    x = torch.full((5, 4), nan).t()
    masked = mg.masked(x.clone(), MASK[0, 0, :1].expand(4, 5))
    mask = masked.mask
    right = seeded(getattr(x, name), *args)
    assert seeded(getattr(masked, name), *args) is masked
    assert masked.mask.equal(mask)
    assert masked.get_data()[mask].equal(right[mask])
    generator = torch.Generator().manual_seed(7)
    getattr(masked, name)(*args, generator=generator)
    assert masked.get_data()[mask].equal(right[mask])


def test_rewriting_a_leaf_is_refused_as_in_torch() -> None:
    x = mg.masked(torch.ones(3, requires_grad=True), torch.tensor([True, True, False]))
    with pytest.raises(RuntimeError, match="leaf"):
        x.normal_()
    leaf = torch.ones(3, requires_grad=True)
    y = mg.masked(leaf, torch.tensor([True, True, False])) * 2
    y.uniform_()
    assert not torch.autograd.grad(y.sum(), leaf)[0].any()
    with torch.no_grad():
        x.normal_()
    assert x.mask.tolist() == [True, True, False]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial_draws_specified_positions_only(replacement: bool, garbage: float) -> None:
    mask = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]]).bool()
    x = torch.where(mask, torch.rand(3, 4) + 0.1, garbage)
    result = torch.multinomial(mg.masked(x, mask), 3, replacement)
    assert result.dtype == torch.int64
    # without replacement one entry allows one draw
    allowed = [[True] * 3, [False] * 3, [True, replacement, replacement]]
    assert result.mask.tolist() == allowed
    for row in range(3):
        assert mask[row][result.get_data()[row][result.mask[row]]].all()
    if not replacement:
        assert sorted(result[0].tolist()) == [0, 2, 3]


def test_multinomial_is_torchs_on_complete_data() -> None:
    x = torch.rand(3, 4)
    for weights in (x, x[0]):
        whole = mg.masked(weights, torch.ones(weights.shape, dtype=torch.bool))
        assert seeded(torch.multinomial, whole, 2).filled(0).equal(seeded(torch.multinomial, weights, 2))
    assert seeded(whole.multinomial, num_samples=9, replacement=True).shape == (9,)
    with pytest.raises(RuntimeError, match="sum of probabilities"):
        torch.multinomial(mg.masked(torch.zeros(2), torch.tensor([True, False])), 1)
    with pytest.raises(RuntimeError, match="cannot sample"):
        torch.multinomial(whole, 9)
