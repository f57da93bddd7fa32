"""The samples that a DistributedSampler repeats."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler

import maskgrad as mg


@pytest.mark.parametrize(("number", "ranks"), [(5, 2), (6, 2), (1, 4), (13, 4), (3, 8), (0, 2)])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_sample_counts_once(number: int, ranks: int, shuffle: bool, drop_last: bool) -> None:
    if number == 0:  # PyTorch's sampler has no answer to that
        return
    counted: list[int] = []
    for rank in range(ranks):
        sampler = DistributedSampler(range(number), ranks, rank, shuffle=shuffle, drop_last=drop_last)
        sampler.set_epoch(3)
        mask = mg.distributed.sampler_mask(sampler)
        assert mask.dtype is torch.bool
        counted += torch.tensor(list(sampler), dtype=torch.int64)[mask].tolist()
    if drop_last:
        assert len(counted) == len(set(counted))
    else:
        assert sorted(counted) == list(range(number))


def test_other_samplers_are_refused() -> None:
    with pytest.raises(TypeError, match="found RandomSampler"):
        mg.distributed.sampler_mask(RandomSampler(range(3)))
