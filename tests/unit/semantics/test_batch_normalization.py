"""Batch and instance normalisation: running statistics; evaluation. Values and gradients are held by the laws."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg

nan = float("nan")


def mask_for(shape: tuple[int, ...]) -> Tensor:
    """Channel 0 has gaps, channel 1 no entry, channel 2 a single one, channel 3 all."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.6
    channels = mask.transpose(0, 1)
    channels[0, :1] = True
    channels[1:3] = False
    channels[2].reshape(-1)[0] = True
    mask[(0, 2, *[0] * (len(shape) - 2))] = True
    channels[3] = True
    return mask


@pytest.mark.parametrize("momentum", [0.3, None])
def test_running_statistics_follow_several_batches(momentum: float | None) -> None:
    module, reference = nn.BatchNorm1d(1, momentum=momentum), nn.BatchNorm1d(1, momentum=momentum)
    for _ in range(3):
        x, mask = torch.randn(10, 1), torch.rand(10, 1) < 0.7
        module(mg.masked(torch.where(mask, x, nan), mask))
        reference(x[mask][:, None])
    torch.testing.assert_close(module.running_mean, reference.running_mean)
    torch.testing.assert_close(module.running_var, reference.running_var)


def test_complete_data_runs_torchs_kernel() -> None:
    x, whole = torch.randn(5, 4), torch.ones(5, 4, dtype=torch.bool)
    module, reference = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    assert module(mg.masked(x, whole)).filled(0.0).equal(reference(x))
    assert module.running_var.equal(reference.running_var)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_running_statistics_are_those_of_entries_or_their_means_over_samples(kind: Any) -> None:
    mask, x = mask_for((3, 4, 5)), torch.randn(3, 4, 5, dtype=torch.float64)
    module = kind(4, track_running_stats=True, dtype=torch.float64)
    module(mg.masked(torch.where(mask, x, nan), mask))
    for channel in range(4):
        samples = [x[n, channel][mask[n, channel]] for n in range(3)]
        parts = samples if kind is nn.InstanceNorm1d else [torch.cat(samples)]
        means, variances = [p.mean() for p in parts if len(p)], [p.var() for p in parts if len(p) > 1]
        mean = 0.1 * torch.stack(means).mean() if means else torch.zeros(()).double()
        variance = 0.9 + 0.1 * torch.stack(variances).mean() if variances else torch.ones(()).double()
        torch.testing.assert_close(module.running_mean[channel], mean)
        torch.testing.assert_close(module.running_var[channel], variance)


@pytest.mark.parametrize("training", [True, False])
def test_masked_parameters_and_statistics(training: bool) -> None:
    x = torch.randn(6, 3)
    known = torch.tensor([True, False, True])
    w, b = (mg.masked(torch.tensor([2.0, nan, 3.0]), known) for _ in "wb")
    mean, variance = mg.masked(torch.zeros(3), known), mg.masked(torch.ones(3), known)
    result = F.batch_norm(x, mean, variance, w, b, training)
    assert result.mask.equal(known.expand(6, 3))
    ones = torch.tensor([2.0, 1.0, 3.0])
    statistics = torch.zeros(3), torch.ones(3)
    right = F.batch_norm(x, *statistics, ones, ones, training)
    torch.testing.assert_close(result.filled(0.0)[:, known], right[:, known])
    # what is unspecified stays so, untouched
    assert mean.mask.equal(known)
    torch.testing.assert_close(mean.get_data()[known], statistics[0][known])
    assert mean.get_data()[1] == 0


def test_a_batch_of_nothing_changes_nothing() -> None:
    module = nn.BatchNorm1d(4)
    before = copy.deepcopy(module.state_dict())
    x = torch.full((6, 4), nan, requires_grad=True)
    result = module(mg.masked(x, torch.zeros(6, 4, dtype=torch.bool)))
    result.sum().backward()
    assert not result.mask.any()
    assert x.grad is not None
    assert not x.grad.count_nonzero()
    assert not module.weight.grad.count_nonzero()
    assert module.running_mean.equal(before["running_mean"])
    assert module.running_var.equal(before["running_var"])


@pytest.mark.parametrize("momentum", [1.0, None])
def test_the_running_variance_is_exact_in_float64(momentum: float | None) -> None:
    """n / (n - 1) of integers would be a number of float32."""
    values = torch.randn(47, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.rand(47, 3, generator=torch.Generator().manual_seed(1)) < 0.6
    module = nn.BatchNorm1d(3, momentum=momentum, dtype=torch.float64)
    module(mg.masked(torch.where(mask, values, nan), mask))
    wanted = torch.stack([values[mask[:, channel], channel].var() for channel in range(3)])
    torch.testing.assert_close(module.running_var, wanted, rtol=1e-14, atol=0.0)
