"""DataLoaders: samples are stacked, in whatever they are nested and wherever they are loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

import maskgrad as mg
from tests.poison import assert_entries, poisoned

#: Of sample i the first i entries are unspecified.
SAMPLES = [
    {"x": poisoned([None if j < i else float(10 * i + j) for j in range(3)]), "pair": [poisoned([None]), i]}
    for i in range(6)
]


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_collated_into_one_masked_batch(workers: int) -> None:
    batches: Any = list(DataLoader(SAMPLES, batch_size=4, num_workers=workers))  # type: ignore[arg-type]
    assert_entries(batches[0]["x"], [[0.0, 1.0, 2.0], [None, 11.0, 12.0], [None, None, 22.0], [None] * 3])
    assert_entries(batches[1]["pair"][0], [[None], [None]])
    assert batches[1]["pair"][1].tolist() == [4, 5]
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        default_collate([poisoned([1.0, None]), poisoned([1.0])])


def test_memory_that_is_pinned_or_shared() -> None:
    x = mg.masked(torch.ones(2).share_memory_())
    assert x.is_shared()
    if torch.accelerator.is_available():
        assert x.pin_memory().is_pinned()
    else:  # in words that depend on what ran before
        assert not x.is_pinned()
        with pytest.raises(RuntimeError, match=r"accelerator|NVIDIA"):
            x.pin_memory()
