"""DataLoaders: samples are stacked, in whatever they are nested and wherever they are loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

import maskgrad as mg
from tests.poison import assert_entries, poisoned


class Samples(Dataset[dict[str, Any]]):
    """Six samples; of sample i the first i entries are unspecified."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> dict[str, Any]:
        entries = [None if j < i else float(10 * i + j) for j in range(3)]
        return {"x": poisoned(entries), "pair": [poisoned([float(i), None]), i]}


def test_samples_of_different_shape_are_refused() -> None:
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        default_collate([poisoned([1.0, None]), poisoned([1.0])])


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_collated_into_one_masked_batch(workers: int) -> None:
    batches = list(DataLoader(Samples(), batch_size=4, num_workers=workers))
    assert [batch["x"].shape for batch in batches] == [(4, 3), (2, 3)]
    assert_entries(batches[0]["x"], [[0.0, 1.0, 2.0], [None, 11.0, 12.0], [None, None, 22.0], [None] * 3])
    assert_entries(batches[1]["pair"][0], [[4.0, None], [5.0, None]])
    assert batches[1]["pair"][1].tolist() == [4, 5]


def test_pinning_without_an_accelerator_fails_in_torchs_words() -> None:
    x = poisoned([1.0, None])
    assert not x.is_pinned()
    if torch.accelerator.is_available():
        assert x.pin_memory().is_pinned()
    else:
        with pytest.raises(
            RuntimeError, match=r"accelerator|NVIDIA"
        ):  # which of them depends on what ran before
            x.pin_memory()


def test_memory_is_shared_between_processes() -> None:
    x = mg.masked(torch.ones(2).share_memory_())
    assert x.is_shared()
