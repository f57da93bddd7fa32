"""Normalisation: groups of nothing; shapes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import nan


@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
@pytest.mark.parametrize("row", [[True, True, False, True], [True] * 4], ids=["gaps", "whole rows"])
def test_a_group_of_nothing_has_no_derivative_to_be_infinite(row: list[bool]) -> None:
    mask = torch.tensor([row, [False] * 4])
    x = torch.where(mask, torch.randn(2, 4), nan).requires_grad_()
    for norm in (F.layer_norm, F.rms_norm):
        with torch.autograd.detect_anomaly(check_nan=True):
            result = norm(mg.masked(x, mask), (4,), eps=0.0)
            (grad,) = torch.autograd.grad(result.filled(0.0).square().sum(), x)
        left = x.detach()[0, mask[0]]
        torch.testing.assert_close(result.filled(0.0)[0, mask[0]], norm(left, left.shape, eps=0.0))
        assert grad.isfinite().all()
        assert not grad[1].count_nonzero()


def test_a_batch_without_channels_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected 3D"):
        F.local_response_norm(mg.masked(torch.ones(2, 2)), 2)


def test_a_group_of_one_channel_has_the_entries_of_its_space() -> None:
    x = torch.randn(1, 2, 5)
    found = F.group_norm(mg.masked(x, torch.ones(1, 2, 5, dtype=torch.bool)), 2)
    torch.testing.assert_close(found.filled(0), F.group_norm(x, 2))


@pytest.mark.own_dtype("bfloat16", "float16")
def test_what_is_not_said_is_as_in_torch() -> None:
    """Rows specified as a whole, one left out, whose variances are as small as the default eps."""
    x, mask = torch.randn(3, 4, 5) * 3e-3, torch.tensor([True, True, False])[:, None, None].expand(3, 4, 5)
    for norm in (
        F.instance_norm,
        lambda t: torch.group_norm(t, 2),  # F.group_norm always says it
        lambda t: F.layer_norm(t, (5,)),
        lambda t: F.rms_norm(t, (5,)),
        lambda t: F.batch_norm(t, None, None, training=True),
        lambda t: F.local_response_norm(t * 1e3, 2),
    ):
        found = norm(mg.masked(torch.where(mask, x, nan), mask)).filled(0.0)
        torch.testing.assert_close(found[:2], norm(x[:2]))
