"""Pooling: every window as torch would pool it if its unspecified entries were deleted."""

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

SPECIFIED = torch.tensor([[[1, 0, 1, 0, 0, 1]]]).bool()


def test_the_mean_of_what_a_window_has() -> None:
    x = poisoned([[[1.0, None, 3.0, 5.0, None, None]]], requires_grad=True)
    y = nn.AvgPool1d(2)(x)
    assert_entries(y, [[[1.0, 4.0, None]]])
    assert_entries(gradient(y, x), [[[1.0, 0.0, 0.5, 0.5, 0.0, 0.0]]])
    assert_entries(F.adaptive_avg_pool1d(x, 2), [[[2.0, 5.0]]])
    assert_entries(nn.AdaptiveAvgPool1d(1)(x), [[[3.0]]])


def test_padding_counts_if_it_should() -> None:
    x = poisoned([[[6.0, None, 3.0, None]]])
    assert_entries(
        F.avg_pool1d(x, 3, 2, 1), [[[3.0, 3.0]]]
    )  # (0 + 6) / 2: the zero of the padding is an entry
    assert_entries(F.avg_pool1d(x, 3, 2, 1, count_include_pad=False), [[[6.0, 3.0]]])
    x = poisoned([[[[None, None, 3.0, None]]]])
    assert_entries(
        F.avg_pool2d(x, (1, 3), (1, 2), (0, 1)), [[[[None, 3.0]]]]
    )  # padding makes nothing specified
    assert_entries(F.avg_pool2d(x, (1, 2), divisor_override=4), [[[[None, 0.75]]]])  # a sum, divided as told


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("ceil_mode", "include"), list(itertools.product([False, True], repeat=2)))
def test_fully_specified_input_gives_what_torch_gives(rank: int, ceil_mode: bool, include: bool) -> None:
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    x = torch.randn(2, 3, *(7, 6, 5)[:rank])
    whole = mg.masked(x, torch.ones_like(x).bool())
    for kernel, stride, padding in ((3, 2, 1), (2, None, 0), (3, 1, 1)):
        options = {"ceil_mode": ceil_mode, "count_include_pad": include}
        found, right = (
            pool(whole, kernel, stride, padding, **options),
            pool(x, kernel, stride, padding, **options),
        )
        assert found.mask.all()
        assert found.filled(nan).equal(right)  # bit for bit: nothing is divided again


def test_the_largest_and_where_it_is() -> None:
    x = poisoned([[[1.0, None, -inf, None, None, None, 2.0, 5.0]]], requires_grad=True)
    y, index = nn.MaxPool1d(2, return_indices=True)(x)
    assert_entries(y, [[[1.0, -inf, None, 5.0]]])
    assert_entries(index, [[[0, 2, None, 7]]])
    assert_entries(gradient(y[..., ::3], x), [[[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]]])
    x = poisoned([[[None, -inf]]], requires_grad=True)  # a specified -inf is not the filler
    y, index = F.max_pool1d(x, 2, return_indices=True)
    assert_entries(index, [[[1]]])
    assert_entries(gradient(y, x), [[[0.0, 1.0]]])
    assert_entries(F.max_pool1d(poisoned([[[nan, 1.0, None]]]), 3), [[[nan]]])  # a real NaN surfaces


def test_integers() -> None:
    x = poisoned([[[[-9, None], [None, None]], [[None, 7], [2, None]]]], torch.int64)
    assert_entries(F.max_pool2d(x, 2), [[[[-9]], [[7]]]], torch.int64)
    assert_entries(F.avg_pool2d(x, 2), [[[[-9]], [[4]]]], torch.int64)
    lowest = torch.iinfo(torch.int64).min
    _, index = F.max_pool2d(poisoned([[[[None, lowest]]]], torch.int64), (1, 2), return_indices=True)
    assert_entries(index, [[[[1]]]])
    x = poisoned([[[-5, None, 2, -9, None, None]]], torch.int64)
    assert_entries(F.avg_pool1d(x, 2), [[[-5, -3, None]]], torch.int64)  # towards zero


@pytest.mark.parametrize("garbage", [nan, inf, -inf, 1e38])
@pytest.mark.parametrize(
    "module",
    [
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, 2, 1),
        nn.MaxPool2d(2),
        nn.MaxPool2d(2, dilation=2),
        nn.AdaptiveAvgPool2d((3, None)),
        nn.AdaptiveMaxPool2d(3),
        nn.LPPool2d(2, 2),
        nn.LPPool2d(0.5, 2),
        nn.FractionalMaxPool2d(2, output_size=3),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_garbage_changes_nothing(module: nn.Module, garbage: float) -> None:
    x = torch.rand(2, 3, 6, 6, dtype=torch.float64)
    mask = torch.rand(2, 3, 6, 6) < 0.3
    mask[0, 0] = False
    results = []
    for dirt in (0.5, garbage):
        data = torch.where(mask, x, dirt).requires_grad_()
        torch.manual_seed(0)
        with torch.autograd.set_detect_anomaly(True):
            y = module(mg.masked(data, mask))
            (grad,) = torch.autograd.grad(y.filled(0.0).square().sum(), data)
        assert not grad[~mask].count_nonzero()
        results.append((y.mask, y.filled(0.0), grad))
    assert results[0][0].any()
    assert not results[0][0].all()
    for one, other in zip(*results, strict=True):
        assert one.equal(other)


def test_lp_pool_by_hand() -> None:
    x = poisoned([[[3.0, None, 4.0, 3.0, None, None]]], requires_grad=True)
    y = F.lp_pool1d(x, 2, 2)
    assert_entries(y, [[[3.0, 5.0, None]]])
    assert_entries(gradient(y, x), [[[1.0, 0.0, 0.8, 0.6, 0.0, 0.0]]])
    assert_entries(F.lp_pool2d(poisoned([[[[3.0, None], [None, 4.0]]]]), 2, 2), [[[[5.0]]]])
    assert_entries(
        nn.LPPool3d(2, 2)(poisoned([[[[[3.0, None], [None, None]], [[None, 4.0], [None, None]]]]])),
        [[[[[5.0]]]]],
    )


def test_unpooling_writes() -> None:
    x = poisoned([[[1.0, None, 4.0, 3.0, None, None]]], requires_grad=True)
    y, index = F.max_pool1d(x, 2, return_indices=True)
    back = nn.MaxUnpool1d(2)(y, index)
    # the zeros in between are the operation's own; what has no place is written nowhere
    assert_entries(back, [[[1.0, 0.0, 4.0, 0.0, 0.0, 0.0]]])
    assert_entries(gradient(back, x), [[[1.0, 0.0, 1.0, 0.0, 0.0, 0.0]]])
    known = torch.tensor([[[0, 2, 5]]])
    assert_entries(F.max_unpool1d(y, known, 2), [[[1.0, 0.0, 4.0, 0.0, 0.0, None]]])
    plain = torch.ones(1, 1, 3, dtype=torch.float64)
    assert F.max_unpool2d(mg.masked(plain[None], y.mask[None]), known[None], (1, 2)).shape == (1, 1, 1, 6)
    image, places = F.max_pool2d(poisoned([[[[None, 1.0], [2.0, None]]]]), 2, return_indices=True)
    assert_entries(F.max_unpool2d(torch.ones(1, 1, 1, 1), places, 2), [[[[0.0, 0.0], [1.0, 0.0]]]])
    assert_entries(F.max_unpool2d(image, places, 2, output_size=(3, 3)).sum(), 2.0)
    with pytest.raises(RuntimeError, match="same as that of the input"):
        F.max_unpool1d(y, known[..., :2], 2)
    with pytest.raises(RuntimeError):
        F.max_unpool1d(y, known + 10, 2)


def test_one_mask_for_all_channels() -> None:
    x, mask = torch.randn(2, 5, 8), torch.rand(2, 1, 8) < 0.5
    shared, written = mg.masked(x, mask), mg.masked(x, mask.repeat(1, 5, 1))
    for pool in (
        nn.AvgPool1d(3, 2, 1),
        nn.MaxPool1d(3, 2, 1, return_indices=True),
        nn.AdaptiveAvgPool1d(3),
        nn.LPPool1d(2, 3),
    ):
        found, right = (pool(t) for t in (shared, written))
        for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, right)), strict=True):
            assert one.mask.equal(other.mask)
            assert one.filled(0).equal(other.filled(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_added_in_float32(dtype: torch.dtype) -> None:
    x = torch.full((1, 1, 4096), 40000.0 if dtype == torch.float16 else 1.0, dtype=dtype)
    mask = torch.arange(4096)[None, None] % 2 == 0
    y = F.avg_pool1d(mg.masked(torch.where(mask, x, nan), mask), 4096)
    assert y.dtype == dtype
    assert y.item() == x[0, 0, 0].item()
    assert F.adaptive_avg_pool1d(mg.masked(torch.where(mask, x, nan), mask), 1).item() == x[0, 0, 0].item()
    x, mask = torch.randn(1, 1, 300).to(dtype), torch.rand(1, 1, 300) < 0.6
    for pool in (nn.AvgPool1d(7), nn.AdaptiveAvgPool1d(9)):  # rounded once, at the end
        wide = pool(mg.masked(x.float(), mask)).filled(0.0)
        assert pool(mg.masked(x, mask)).filled(0.0).equal(wide.to(dtype))


def test_unbatched_and_empty() -> None:
    x, mask = torch.randn(3, 4, 4), torch.rand(3, 4, 4) < 0.5
    for pool in (nn.AvgPool2d(2), nn.MaxPool2d(2), nn.AdaptiveMaxPool2d(2), nn.AdaptiveAvgPool2d(2)):
        one, many = pool(mg.masked(x, mask)), pool(mg.masked(x[None], mask[None]))
        assert one.mask.equal(many.mask[0])
        assert one.filled(0.0).equal(many.filled(0.0)[0])
        none = pool(mg.masked(x[None][:0], mask[None][:0]))
        assert none.shape == (0, 3, 2, 2)
    with pytest.raises(RuntimeError):
        F.max_pool2d(mg.masked(x, mask), 5)
    with pytest.raises(RuntimeError, match="pad should be at most half"):
        F.avg_pool2d(mg.masked(x, mask), 2, padding=2)


def test_random_windows_are_torchs() -> None:
    x = torch.randn(2, 3, 7, 7)
    whole = mg.masked(x, torch.ones_like(x).bool())
    for options in ({"output_size": 3}, {"output_ratio": (0.5, 0.5)}):
        torch.manual_seed(5)
        right, places = F.fractional_max_pool2d(x, 2, return_indices=True, **options)
        torch.manual_seed(5)
        found, index = F.fractional_max_pool2d(whole, 2, return_indices=True, **options)
        assert found.filled(nan).equal(right)
        assert index.filled(-1).equal(places)


def test_second_derivatives() -> None:
    x, mask = torch.rand(1, 2, 4, 4, dtype=torch.float64, requires_grad=True), torch.rand(1, 2, 4, 4) < 0.6
    for pool in (nn.AvgPool2d(2), nn.MaxPool2d(2), nn.LPPool2d(3, 2), nn.AdaptiveMaxPool2d(3)):
        assert torch.autograd.gradgradcheck(lambda x, pool=pool: pool(mg.masked(x, mask)).filled(0.0), (x,))


def test_compiled_in_one_piece() -> None:
    x, mask = torch.randn(2, 3, 6, 6), torch.rand(2, 3, 6, 6) < 0.5

    def pools(m: mg.MaskedTensor) -> tuple[Any, ...]:
        return (
            F.avg_pool2d(m, 3, 2, 1),
            *F.max_pool2d(m, 2, return_indices=True),
            F.adaptive_avg_pool2d(m, 2),
            F.lp_pool2d(m, 2.0, 2),
        )

    compiled = torch.compile(pools, fullgraph=True, backend="aot_eager")
    for known in (mask, ~mask):
        m = mg.masked(x, known)
        for one, other in zip(compiled(m), pools(m), strict=True):
            assert one.mask.equal(other.mask)
            torch.testing.assert_close(one.filled(0), other.filled(0))


def test_vmap() -> None:
    x, mask = torch.randn(3, 2, 4, 4), torch.rand(3, 2, 4, 4) < 0.5

    def pool(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        m = mg.masked(x, mask)
        return F.avg_pool2d(m, 2).filled(0.0), F.max_pool2d(m, 2).filled(0.0)

    for found, right in zip(torch.vmap(pool)(x, mask), pool(x, mask), strict=True):
        torch.testing.assert_close(found, right)


def test_half_a_derivative_is_refused() -> None:
    x = mg.masked(torch.randn(1, 1, 2, 2), torch.ones(1, 1, 2, 2).bool())
    with pytest.raises(mg.UndefinedOnMaskedError, match="Let autograd call it"):
        torch.ops.aten.max_pool2d_with_indices_backward(
            x, x, [2, 2], [2, 2], [0, 0], [1, 1], False, torch.zeros(1, 1, 1, 1).long()
        )


def test_a_size_in_a_tuple_of_one_is_for_all_dimensions() -> None:
    x = mg.masked(torch.arange(16.0).reshape(1, 1, 4, 4), torch.rand(1, 1, 4, 4) < 0.7)
    for pool in (F.avg_pool2d, F.max_pool2d, F.lp_pool2d):
        more = (2.0,) if pool is F.lp_pool2d else ()
        one, number = (pool(x, *more, size) for size in ((2,), 2))
        assert one.mask.equal(number.mask)
        assert one.filled(0).equal(number.filled(0))
