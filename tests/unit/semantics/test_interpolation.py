"""Interpolation and sampling: all neighbours of non-zero weight, or nothing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, nan, poisoned


def weights_of(function: Any, shape: tuple[int, ...]) -> Tensor:
    """The weight of each entry (columns) in each result (rows), of one channel."""
    return torch.autograd.functional.jacobian(
        lambda x: function(x.reshape(1, 1, *shape)).flatten(),
        torch.randn(shape, dtype=torch.float64).flatten(),
    )


def test_a_line() -> None:
    x = poisoned([[[0.0, None, 4.0, 6.0]]], requires_grad=True)
    y = F.interpolate(x, size=7, mode="linear", align_corners=True)
    assert_entries(y, [[[0.0, None, None, None, 4.0, 5.0, 6.0]]])
    assert_entries(gradient(y, x), [[[1.0, 0.0, 1.5, 1.5]]])
    assert_entries(nn.Upsample(scale_factor=2)(x), [[[0.0, 0.0, None, None, 4.0, 4.0, 6.0, 6.0]]])
    assert_entries(F.interpolate(x, 2, mode="nearest-exact"), [[[None, 6.0]]])
    assert_entries(F.interpolate(x, 2, mode="area"), [[[0.0, 5.0]]])  # which is adaptive average pooling


MODES = [("bilinear", False), ("bilinear", True), ("bicubic", False), ("bicubic", True)]
SIZES: list[dict[str, Any]] = [
    {"size": (9, 4)},
    {"size": (3, 11)},
    {"scale_factor": 2},
    {"scale_factor": (0.6, 1.5)},
    {"scale_factor": (0.6, 1.5), "recompute_scale_factor": True},
]


@pytest.mark.parametrize(("mode", "antialias"), MODES)
@pytest.mark.parametrize("how", SIZES, ids=str)
@pytest.mark.parametrize("align_corners", [False, True])
def test_every_weight_counts(mode: str, antialias: bool, how: dict[str, Any], align_corners: bool) -> None:
    def resize(x: Any) -> Any:
        return F.interpolate(x, mode=mode, antialias=antialias, align_corners=align_corners, **how)

    needed = weights_of(resize, (6, 5)).abs() > 1e-9
    clean = torch.randn(1, 3, 6, 5, dtype=torch.float64)
    for garbage in (nan, inf, -inf, 1e38):
        mask = torch.rand(1, 3, 6, 5) < 0.9
        x = torch.where(mask, clean, garbage).requires_grad_()
        y = resize(mg.masked(x, mask))
        spoiled = (needed.double() @ (~mask).double().reshape(3, -1).T).T > 0
        assert y.mask.equal(~spoiled.reshape(y.shape))
        torch.testing.assert_close(y.compressed(), resize(clean)[y.mask])
        (grad,) = torch.autograd.grad(y.filled(0.0).sum(), x)
        assert grad.isfinite().all()
        assert not grad[~mask].count_nonzero()


def test_volumes_and_old_names() -> None:
    x, mask = torch.randn(1, 1, 3, 3, 3), torch.ones(1, 1, 3, 3, 3).bool()
    mask[0, 0, 0, 0, 0] = False
    y = F.interpolate(mg.masked(x, mask), scale_factor=2, mode="trilinear", align_corners=False)
    assert (~y.mask).nonzero()[:, 2:].amax(0).tolist() == [2, 2, 2]
    assert int((~y.mask).sum()) == 27
    with pytest.warns(UserWarning, match="deprecated"):
        old = F.upsample_nearest(mg.masked(x, mask), scale_factor=2)
    assert int((~old.mask).sum()) == 8
    with pytest.raises(ValueError, match="size or scale_factor"):
        F.interpolate(mg.masked(x, mask))


def test_bytes() -> None:
    x = torch.randint(0, 255, (1, 1, 4, 4), dtype=torch.uint8)
    mask = torch.ones(1, 1, 4, 4).bool()
    mask[..., 0, 0] = False
    y = F.interpolate(mg.masked(x, mask), scale_factor=2, mode="bilinear")
    assert y.dtype == torch.uint8
    assert int((~y.mask).sum()) == 9


PLACES = torch.tensor(
    [[[[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [-0.5, 0.7], [1.6, 0.1], [-3.0, 0.3]]]]
).double()


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_samples_need_their_neighbours(mode: str, padding_mode: str, align_corners: bool) -> None:
    def sample(x: Any, places: Any = PLACES) -> Any:
        return F.grid_sample(x, places, mode, padding_mode, align_corners)

    needed = weights_of(sample, (5, 4)).abs() > 1e-9
    for hole in itertools.product(range(5), range(4)):
        mask = torch.ones(1, 1, 5, 4).bool()
        mask[(0, 0, *hole)] = False
        clean = torch.randn(1, 1, 5, 4, dtype=torch.float64)
        x = torch.where(mask, clean, nan).requires_grad_()
        y = sample(mg.masked(x, mask))
        assert y.mask.flatten().equal(~needed[:, hole[0] * 4 + hole[1]])
        torch.testing.assert_close(y.compressed(), sample(clean)[y.mask])
        assert torch.autograd.grad(y.filled(0.0).sum(), x)[0].isfinite().all()


def test_the_whole_grid_of_an_identity_is_the_image() -> None:
    x, mask = torch.randn(2, 3, 7, 9), torch.rand(2, 3, 7, 9) < 0.7
    theta = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]).repeat(2, 1, 1)
    for align_corners in (True, False):
        grid = F.affine_grid(theta, [2, 3, 7, 9], align_corners)
        y = F.grid_sample(mg.masked(x, mask), grid, align_corners=align_corners)
        assert y.mask.equal(mask)  # rounding in the grid gives the neighbours no weight
        torch.testing.assert_close(y.compressed(), x[mask], rtol=1e-4, atol=1e-5)


def test_places_may_be_missing_too() -> None:
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    known = torch.tensor([[[[True, True], [True, False], [False, False]]]])
    places = torch.tensor([[[[0.1, 0.2], [0.3, nan], [inf, nan]]]], dtype=torch.float64, requires_grad=True)
    y = F.grid_sample(x, mg.masked(places, known), align_corners=False)
    assert y.mask[0, 0, 0].tolist() == [True, False, False]
    by_image, by_place = torch.autograd.grad(y.filled(0.0).sum(), [x, places])
    assert by_image.isfinite().all()
    assert by_place[0, 0, 0].count_nonzero() == 2
    assert not by_place[0, 0, 1:].count_nonzero()


def test_a_derivative_that_does_not_exist_is_zero() -> None:
    x = poisoned([[[[1.0, 2.0, None], [3.0, 5.0, None]]]])
    place = torch.tensor(
        [[[[0.0, 0.0]]]], dtype=torch.float64, requires_grad=True
    )  # on column 1, between the rows
    y = F.grid_sample(x, place, align_corners=True)
    assert_entries(y, [[[[3.5]]]])
    assert_entries(gradient(y, place), [[[[0.0, 1.5]]]])


def test_affine_grids() -> None:
    theta = poisoned([[[1.0, 0.0, 0.5], [0.0, None, 0.0]]], requires_grad=True)
    grid = F.affine_grid(theta, [1, 1, 2, 2], align_corners=False)
    assert grid.mask[..., 0].all()
    assert not grid.mask[..., 1].any()
    assert_entries(gradient(grid, theta), [[[0.0, 0.0, 4.0], [0.0, 0.0, 0.0]]])
    x = torch.randn(1, 1, 2, 2, dtype=torch.float64)
    assert not F.grid_sample(x, grid, align_corners=False).mask.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(dtype: torch.dtype) -> None:
    x, mask = torch.randn(1, 2, 4, 4).to(dtype), torch.rand(1, 2, 4, 4) < 0.8
    whole = mg.masked(x, torch.ones_like(mask))
    for mode in ("nearest", "bilinear", "bicubic"):
        y = F.interpolate(mg.masked(torch.where(mask, x, nan), mask), scale_factor=2, mode=mode)
        assert y.dtype == dtype
        assert y.filled(0).isfinite().all()
        right = F.interpolate(x, scale_factor=2, mode=mode)
        assert F.interpolate(whole, scale_factor=2, mode=mode).filled(nan).equal(right)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_coarse_coordinates_fall_where_torch_puts_them(mode: str) -> None:
    x, places = torch.rand(1, 3, 9, 9).bfloat16() + 1, torch.rand(1, 20, 20, 2).bfloat16() * 2 - 1
    mask = torch.rand(1, 3, 9, 9) < 0.9
    y = F.grid_sample(mg.masked(torch.where(mask, x, nan), mask), places, mode, align_corners=False)
    assert 0 < int(y.mask.sum()) < y.mask.numel()
    assert y.compressed().equal(F.grid_sample(x, places, mode, align_corners=False)[y.mask])


def test_second_derivatives() -> None:
    x, mask = torch.randn(1, 1, 4, 4, dtype=torch.float64, requires_grad=True), torch.rand(1, 1, 4, 4) < 0.8
    places = PLACES[:, :, 3:5].clone().requires_grad_()

    def sample(x: Tensor, places: Tensor) -> Tensor:
        m = mg.masked(x, mask)
        up = F.interpolate(m, scale_factor=2, mode="bicubic").filled(0.0).sum()
        return F.grid_sample(m, places, align_corners=False).filled(0.0).square().sum() + up

    assert torch.autograd.gradgradcheck(sample, (x, places))


def test_compiled_in_one_piece() -> None:
    x, mask = torch.randn(1, 2, 5, 5), torch.rand(1, 2, 5, 5) < 0.8

    def resize(m: mg.MaskedTensor) -> tuple[Any, ...]:
        return (
            F.interpolate(m, scale_factor=2, mode="bilinear"),
            F.interpolate(m, (7, 3), mode="bicubic"),
            F.interpolate(m, (7, 3)),
            F.grid_sample(m, PLACES.float(), align_corners=False),
        )

    m = mg.masked(x, mask)
    for one, other in zip(
        torch.compile(resize, fullgraph=True, backend="aot_eager")(m), resize(m), strict=True
    ):
        assert one.mask.equal(other.mask)
        torch.testing.assert_close(one.filled(0.0), other.filled(0.0))
