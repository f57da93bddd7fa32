"""Covariance and correlation: each pair of variables over the observations that have both."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, poisoned

FEW = "ignore:cov.*degrees of freedom"


def by_pairs(function: Any, x: Tensor, mask: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """torch on each pair, after deletion; a coefficient that is NaN has no gradient.

    In torch the weighted mean of one observation may differ from it in the last bit, and 1e-28 / 0 is infinite.
    """
    taken = 1 if function is torch.corrcoef else options.get("correction", 1)
    rows, present = [], mask.double()
    # as many observations as fweights say, each of the same weight: so many degrees of freedom
    repeated, weight = options.get("fweights", torch.ones(mask.shape[1])), options.get("aweights", 1.0)
    total = (present * repeated * weight) @ present.T
    freedom = total - taken * (present * repeated * weight**2) @ present.T / total
    known = freedom.nan_to_num(0) > 1e-12
    for i in range(len(x)):
        for j in range(len(x)):
            both = mask[i] & mask[j]
            weights = {k: v[both] if isinstance(v, Tensor) else v for k, v in options.items()}
            found = function(x[[i, j]][:, both].clone(), **weights)[0, 1] if both.any() else x.new_zeros(())
            rows.append(
                found
                if found.isfinite()
                else found.detach()
                if both.sum() > 1
                else torch.tensor(nan).double()
            )
    return torch.stack(rows).reshape(len(x), len(x)), known


@pytest.mark.filterwarnings(FEW)
@pytest.mark.parametrize("garbage", [nan, inf, -inf, 1e38])
@pytest.mark.parametrize("density", [0.8, 0.5, 0.2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"correction": 0},
        {"fweights": torch.tensor([1, 2, 1, 3, 1, 2, 1])},
        {"aweights": torch.tensor([0.5, 1.0, 2.0, 1.0, 0.25, 1.5, 1.0]).double()},
        {
            "aweights": torch.rand(7).double() + 0.1,
            "fweights": torch.tensor([1, 2, 1, 3, 1, 2, 1]),
            "correction": 2,
        },
    ],
)
def test_cov_is_torchs_after_deletion(options: dict[str, Any], density: float, garbage: float) -> None:
    mask = torch.rand(4, 7) < density
    x = torch.where(mask, 100 + torch.randn(4, 7).double(), garbage).requires_grad_()
    check(torch.cov, x, mask, **options)


@pytest.mark.filterwarnings(FEW)
@pytest.mark.parametrize("garbage", [nan, inf, -inf, 1e38])
@pytest.mark.parametrize("density", [0.8, 0.5, 0.2])
def test_corrcoef_is_torchs_after_deletion(density: float, garbage: float) -> None:
    mask = torch.rand(4, 9) < density
    check(torch.corrcoef, torch.where(mask, torch.randn(4, 9).double(), garbage).requires_grad_(), mask)


def test_an_observation_that_is_repeated_has_an_estimate() -> None:
    """As in torch: three equal observations have the variance 0, one has none, with either weight."""
    one = mg.masked(torch.tensor([[5.0, nan]]), torch.tensor([[True, False]]))
    assert torch.cov(one, fweights=torch.tensor([3, 1])).filled(9).item() == 0
    assert not torch.cov(one, fweights=torch.tensor([1, 3])).mask
    assert not torch.cov(one, aweights=torch.tensor([0.3, 3.0])).mask
    both = {"fweights": torch.tensor([2, 5]), "aweights": torch.tensor([0.1, 3.0])}
    assert torch.cov(one, **both).filled(9).item() == 0
    assert not torch.cov(one, **both, correction=2).mask


def test_nothing_has_no_covariance_whatever_the_correction() -> None:
    nothing = mg.masked(torch.tensor([[nan, 1.0], [2.0, inf]]), torch.tensor([[False, True], [True, False]]))
    for correction in (-1, 0, 1):
        found = torch.cov(nothing, correction=correction)
        assert found.mask.tolist() == [[correction < 1, False], [False, correction < 1]]


def check(function: Any, x: Tensor, mask: Tensor, **options: Any) -> None:
    expected, known = by_pairs(function, x, mask, **options)
    found = function(mg.masked(x, mask), **options)
    assert torch.equal(found.mask, known)
    torch.testing.assert_close(
        found.filled(0), expected.where(known, 0), equal_nan=True, rtol=1e-7, atol=1e-9
    )
    finite = known & expected.isfinite()
    noise = torch.where(finite, torch.randn(known.shape).double(), 0)
    wanted = torch.autograd.grad((torch.where(finite, expected, 0) * noise).sum() + 0 * x[mask].sum(), x)
    grad = torch.autograd.grad((torch.where(finite, found.filled(0), 0) * noise).sum(), x)
    torch.testing.assert_close(grad, wanted, rtol=1e-6, atol=1e-8)


def test_by_hand() -> None:
    x = poisoned([[1.0, 2.0, 3.0, None], [None, 4.0, 8.0, 1.0], [None, None, None, 5.0]])
    with pytest.warns(UserWarning, match="degrees of freedom"):
        torch.cov(torch.ones(1, 1))
    assert_entries(x.cov(), [[1.0, 2.0, None], [2.0, 37 / 3, None], [None] * 3])
    assert_entries(x.corrcoef(), [[1.0, 1.0, None], [1.0, 1.0, None], [None] * 3])


@pytest.mark.filterwarnings(FEW)
def test_shapes_and_dtypes() -> None:
    assert_entries(torch.cov(poisoned([1.0, None, 3.0])), 2.0)
    assert_entries(torch.cov(poisoned([[1.0, None, 3.0]])), 2.0)
    assert_entries(torch.corrcoef(poisoned([1.0, None, 3.0])), 1.0)
    assert_entries(torch.cov(poisoned([None, None])), None)
    assert_entries(torch.cov(poisoned([[1, None, 4]], torch.int64)), 4.5, torch.float32)
    assert_entries(torch.cov(poisoned([[1, None, 4]], torch.float16)), 4.5, torch.float16)
    z = torch.tensor([[1 + 1j, 2 - 1j, 3j], [2j, 1.0, 4.0]])
    torch.testing.assert_close(torch.cov(mg.masked(z)).filled(0), torch.cov(z))
    torch.testing.assert_close(torch.corrcoef(mg.masked(z)).filled(0), torch.corrcoef(z))


def test_an_observation_with_an_unspecified_weight_is_deleted() -> None:
    x = torch.tensor([[1.0, 5.0, 3.0], [2.0, 9.0, 8.0]]).double()
    weights = poisoned([1, None, 2], torch.int64)
    expected = torch.cov(x[:, [0, 2]], fweights=torch.tensor([1, 2]))
    torch.testing.assert_close(torch.cov(x, fweights=weights).filled(0), expected)
    torch.testing.assert_close(
        torch.cov(mg.masked(x), aweights=weights.double()).filled(0),
        torch.cov(x[:, [0, 2]], aweights=torch.tensor([1.0, 2.0]).double()),
    )


def test_a_variable_that_is_constant_in_common_has_no_correlation() -> None:
    x = poisoned([[0.1, 0.1, 0.1, 9.0], [1.0, 2.0, 4.0, None]], torch.float32)
    r = torch.corrcoef(x)
    assert r.mask.all()
    assert math.isnan(r[0, 1].item())
    assert r.filled(0).diagonal().tolist() == [1.0, 1.0]


def test_an_infinite_entry_stays_in_its_pairs() -> None:
    x = poisoned([[inf, 1.0, 2.0], [None, 3.0, 5.0]])
    c = torch.cov(x)
    assert c[0, 1].item() == 1.0
    assert not math.isfinite(c[0, 0].item())


def test_mistakes_are_torchs() -> None:
    x = poisoned([[1.0, None]])
    with pytest.raises(RuntimeError, match="two or fewer dimensions"):
        torch.cov(x[None])
    with pytest.raises(RuntimeError, match="two or fewer dimensions"):
        torch.corrcoef(x[None])
    with pytest.raises(RuntimeError, match="fweights cannot be negative"):
        torch.cov(x, correction=0, fweights=torch.tensor([-1, 2]))


def test_compiled_and_second_derivatives() -> None:
    mask = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]]).bool()

    def f(entries: Tensor) -> Tensor:
        x = mg.masked(torch.full((2, 5), nan).double().masked_scatter(mask, entries), mask)
        return torch.cat([x.cov().filled(0.0), x.corrcoef().filled(0.0)[:1]])

    point = torch.randn(8).double().requires_grad_()
    assert torch.autograd.gradcheck(f, point)
    assert torch.autograd.gradgradcheck(f, point)
    x = mg.masked(torch.randn(2, 5), mask)
    compiled = torch.compile(lambda x: (x.cov(), x.corrcoef()), fullgraph=True, backend="eager")(x)
    torch.testing.assert_close(compiled[0].filled(0), x.cov().filled(0))
    torch.testing.assert_close(compiled[1].filled(0), x.corrcoef().filled(0))
