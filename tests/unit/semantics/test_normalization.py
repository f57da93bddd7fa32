"""Normalisation: parameters with holes, infinities, native statistics, renorm in place."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg

# Anomaly mode announces itself; forward-mode derivatives make torch use its own deprecated scripts.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
    # torch says so, once, of a half input and a float32 weight
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning"),
]

nan, inf = float("nan"), float("inf")
#: A row with gaps, one of nothing, one of a single entry, a complete one.
MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0], [1, 1, 1, 1]]).bool()
WHOLE_ROWS = torch.tensor([[1], [0], [1], [1]]).bool().expand(4, 4)


def leaf(garbage: float = nan, mask: Tensor = MASK, dtype: torch.dtype = torch.float64) -> Tensor:
    x = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.where(mask, x, garbage).to(dtype).requires_grad_()


def parameters() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, generator=generator, dtype=torch.float64).requires_grad_() for _ in "wb"]


@pytest.mark.parametrize("bias", [True, False])
def test_unspecified_weights_and_biases(bias: bool) -> None:
    known = torch.tensor([True, False, True, True])
    also = torch.tensor([True, True, True, False]) if bias else torch.ones(4, dtype=torch.bool)
    x, (w, b) = leaf(), parameters()
    dirty = [torch.where(m, p, nan).detach().requires_grad_() for p, m in ((w, known), (b, also))]
    given = mg.masked(dirty[1], also) if bias else dirty[1]
    for mask in (MASK, WHOLE_ROWS):
        result = F.layer_norm(
            mg.masked(x.detach().nan_to_num(), mask), (4,), mg.masked(dirty[0], known), given
        )
        right = F.layer_norm(mg.masked(x.detach().nan_to_num(), mask), (4,), w, b)
        here = mask & known & also
        assert result.mask.equal(here)
        torch.testing.assert_close(result.filled(0.0), torch.where(here, right.filled(0.0), 0))
        found = torch.autograd.grad(result.filled(0.0).sum(), dirty)
        expected = torch.autograd.grad(right.filled(0.0)[here].sum(), [w, b])
        torch.testing.assert_close(found, expected)
    plain = F.layer_norm(x.detach().nan_to_num(), (4,), mg.masked(dirty[0], known))
    assert plain.mask.equal(known.expand(4, 4))


def test_a_real_nan_stays_in_its_row() -> None:
    x = torch.tensor([[nan, 1.0, 7.0], [2.0, 4.0, 3.0]])
    w = torch.ones(3, requires_grad=True)
    result = F.layer_norm(mg.masked(x, torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()), (3,), w)
    (grad,) = torch.autograd.grad(result.filled(0.0).sum(), w)
    assert grad.isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("mask", [MASK[:2], WHOLE_ROWS[:2]], ids=["gaps", "whole rows"])
def test_a_group_of_nothing_has_no_derivative_to_be_infinite(mask: Tensor) -> None:
    x = leaf(nan, mask)
    for norm in (F.layer_norm, F.rms_norm):
        with torch.autograd.detect_anomaly(check_nan=True):
            result = norm(mg.masked(x, mask), (4,), eps=0.0)
            (grad,) = torch.autograd.grad(result.filled(0.0).square().sum(), x)
        left = x.detach()[0, mask[0]]
        torch.testing.assert_close(result.filled(0.0)[0, mask[0]], norm(left, left.shape, eps=0.0))
        assert grad.isfinite().all()
        assert not grad[1].count_nonzero()


def test_an_absent_neighbour_is_one_beyond_the_border() -> None:
    x = torch.tensor([[[3.0], [nan], [4.0]]], requires_grad=True)
    mask = torch.tensor([[[1], [0], [1]]]).bool()
    result = nn.LocalResponseNorm(3, alpha=3.0, beta=1.0, k=0.0)(mg.masked(x, mask))
    torch.testing.assert_close(result.filled(0.0), torch.tensor([[[1 / 3], [0.0], [1 / 4]]]))
    (grad,) = torch.autograd.grad(result.filled(0.0).sum(), x)
    torch.testing.assert_close(grad, torch.tensor([[[-1 / 9], [0.0], [-1 / 16]]]))
    nothing = torch.full((1, 2, 3, 3), nan, requires_grad=True)
    result = F.local_response_norm(mg.masked(nothing, torch.tensor(False)), 2, k=0.0)
    assert not torch.autograd.grad(result.filled(0.0).sum(), nothing)[0].count_nonzero()
    with pytest.raises(ValueError, match="Expected 3D"):
        F.local_response_norm(mg.masked(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)), 2)


def test_a_group_of_one_channel_has_the_entries_of_its_space() -> None:
    x = torch.randn(1, 2, 5)
    found = F.group_norm(mg.masked(x, torch.ones(1, 2, 5, dtype=torch.bool)), 2)
    torch.testing.assert_close(found.filled(0), F.group_norm(x, 2))
