"""Softmax: infinities, integers, dimensions that are not named, whole slices, and Gumbel noise."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, poisoned


def test_an_implicit_dimension_is_chosen_with_torchs_warning() -> None:
    x = poisoned([[1.0, 2.0, None], [None, None, None]])
    with pytest.warns(UserWarning, match="Implicit dimension choice"):
        assert F.softmax(x).filled(0.0).equal(F.softmax(x, 1).filled(0.0))
    with pytest.raises(TypeError, match="dim"):
        x.softmax()


def test_integers_are_refused_as_in_torch_unless_a_dtype_is_given() -> None:
    x = poisoned([1, 2, None], torch.int64)
    with pytest.raises(RuntimeError, match="not implemented for 'Long'"):
        x.softmax(0)
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        torch.log_softmax(x[None].to_sparse(), 1)
    expected = torch.tensor([1.0, 2.0]).double().softmax(0)
    assert_entries(x.softmax(0, torch.float64), [*expected.tolist(), None])


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
    found = []
    for operand in (x, mg.masked(x)):
        torch.manual_seed(1)
        found.append(F.gumbel_softmax(operand, 0.5, dim=0))
    torch.testing.assert_close(found[1].filled(0.0), found[0])
    with pytest.warns(UserWarning, match="deprecated and has no effect"):
        F.gumbel_softmax(mg.masked(x), eps=1e-8)


def test_a_safe_softmax_of_minus_infinities_is_zero() -> None:
    x = mg.masked(torch.tensor([-inf, -inf, 3.0]), torch.tensor([True, True, False]))
    assert torch.ops.aten._safe_softmax(x, 0).tolist() == [0.0, 0.0, None]
