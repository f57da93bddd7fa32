"""Batch and instance normalisation: running statistics. Values and gradients are held by the laws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import nan


@pytest.mark.parametrize(
    ("kind", "momentum"), [(nn.BatchNorm1d, 0.3), (nn.BatchNorm1d, None), (nn.InstanceNorm1d, 0.3)]
)
def test_running_statistics_are_those_of_entries_or_their_means_over_samples(
    kind: Any, momentum: float | None
) -> None:
    """In channel 1 nothing is specified, in channel 2 one entry; n / (n - 1) of integers would be float32."""
    module = kind(4, track_running_stats=True, momentum=momentum, dtype=torch.float64)
    mean, variance = torch.zeros(4).double(), torch.ones(4).double()
    for batch in range(2):
        x, mask = torch.randn(3, 4, 5, dtype=torch.float64), torch.rand(3, 4, 5) < 0.6
        mask[:, 1:3] = False
        mask[0, 0] = mask[0, 2, 0] = mask[:, 3] = True
        module(mg.masked(torch.where(mask, x, nan), mask))
        share = 1 / (batch + 1) if momentum is None else momentum
        for channel in range(4):
            samples = [x[n, channel][mask[n, channel]] for n in range(3)]
            parts = samples if kind is nn.InstanceNorm1d else [torch.cat(samples)]
            for old, new in (
                (mean, [part.mean() for part in parts if len(part)]),
                (variance, [part.var() for part in parts if len(part) > 1]),
            ):
                if new:
                    old[channel] += share * (torch.stack(new).mean() - old[channel])
    torch.testing.assert_close(module.running_mean, mean, rtol=1e-14, atol=1e-16)
    torch.testing.assert_close(module.running_var, variance, rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.own_dtype("bfloat16", "float16")
def test_masked_parameters_and_statistics(training: bool) -> None:
    x, ones = torch.randn(6, 3), torch.tensor([2.0, 1.0, 3.0])
    known = torch.tensor([True, False, True])
    w = mg.masked(torch.where(known, ones, nan), known)
    mean, variance = mg.masked(torch.zeros(3), known), mg.masked(torch.ones(3), known)
    result = F.batch_norm(x, mean, variance, w, w, training)
    assert result.mask.equal(known.expand(6, 3))
    statistics = torch.zeros(3), torch.ones(3)
    right = F.batch_norm(x, *statistics, ones, ones, training)
    torch.testing.assert_close(result.filled(0.0)[:, known], right[:, known])
    assert mean.mask.equal(known)  # what is unspecified stays so, untouched
    torch.testing.assert_close(mean.get_data()[known], statistics[0][known])
    assert mean.get_data()[1] == 0


def test_complete_data_runs_torchs_kernel() -> None:
    x, whole = torch.randn(5, 4), torch.ones(5, 4, dtype=torch.bool)
    module, reference = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    assert module(mg.masked(x, whole)).filled(0.0).equal(reference(x))
    assert module.running_var.equal(reference.running_var)


def test_the_native_function_follows_the_statistics_once() -> None:
    x, mask = torch.randn(6, 3), torch.rand(6, 3) < 0.8
    found, expected = ([torch.zeros(3), torch.ones(3)] for _ in range(2))
    out, *_ = torch.native_batch_norm(mg.masked(x, mask), None, None, *found, True, 0.1, 1e-5)
    other = F.batch_norm(mg.masked(x, mask), *expected, training=True)
    torch.testing.assert_close(out.filled(0.0), other.filled(0.0))
    torch.testing.assert_close(found, expected)
