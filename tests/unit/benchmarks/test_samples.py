from __future__ import annotations

import pytest
import torch

from benchmarks.samples import random_mask, random_values


@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (4, 3, 5)])
@pytest.mark.parametrize("dim", [0, 1])
def test_two_entries_in_every_line(shape: tuple[int, ...], dim: int) -> None:
    mask = random_mask(shape, 1e-9, (dim,))
    assert mask.shape == shape
    assert mask.is_contiguous()
    counts = mask.sum(dim)
    assert (counts >= 2).all()
    assert counts.sum() <= 2 * counts.numel() + 2


def test_lines_along_two_dimensions() -> None:
    mask = random_mask((6, 9), 1e-9, (0, 1))
    assert (mask.sum(0) >= 2).all()
    assert (mask.sum(1) >= 2).all()


@pytest.mark.parametrize("density", [0.1, 0.5, 1.0])
def test_the_density_is_what_was_asked_for(density: float) -> None:
    mask = random_mask((300, 300), density)
    assert mask.float().mean().item() == pytest.approx(density, abs=0.02)


def test_samples_are_the_same_in_every_run() -> None:
    assert torch.equal(random_values((3, 4), "float32"), random_values((3, 4), "float32"))
    assert torch.equal(random_mask((30, 4), 0.5), random_mask((30, 4), 0.5))
    assert random_values((), "bfloat16").dtype is torch.bfloat16
