"""Interpolation and sampling: all neighbours of non-zero weight, or nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import assert_entries, gradient, nan, poisoned


def test_an_affine_grid_misses_the_coordinate_whose_row_is_missing() -> None:
    theta = poisoned([[[1.0, 0.0, 0.5], [0.0, None, 0.0]]], requires_grad=True)
    grid = F.affine_grid(theta, [1, 1, 2, 2], align_corners=False)
    assert grid.mask[..., 0].all()
    assert not grid.mask[..., 1].any()
    assert_entries(gradient(grid, theta), [[[0.0, 0.0, 4.0], [0.0, 0.0, 0.0]]])
    x = torch.randn(1, 1, 2, 2).type_as(theta.get_data())
    assert not F.grid_sample(x, grid, align_corners=False).mask.any()


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_coarse_coordinates_fall_where_torch_puts_them(mode: str) -> None:
    x, places = torch.rand(1, 3, 9, 9).bfloat16() + 1, torch.rand(1, 20, 20, 2).bfloat16() * 2 - 1
    mask = torch.rand(1, 3, 9, 9) < 0.9
    y = F.grid_sample(mg.masked(torch.where(mask, x, nan), mask), places, mode, align_corners=False)
    assert 0 < int(y.mask.sum()) < y.mask.numel()
    assert y.compressed().equal(F.grid_sample(x, places, mode, align_corners=False)[y.mask])
