"""Pooling: every window as torch would pool it if its unspecified entries were deleted."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import assert_entries, gradient, poisoned


def test_unpooling_specifies_only_where_it_writes() -> None:
    x = poisoned([[[1.0, None, 4.0, 3.0, None, None]]], requires_grad=True)
    y, index = F.max_pool1d(x, 2, return_indices=True)
    back = nn.MaxUnpool1d(2)(y, index)
    # the zeros in between are the operation's own; what has no place is written nowhere
    assert_entries(back, [[[1.0, 0.0, 4.0, 0.0, 0.0, 0.0]]])
    assert_entries(gradient(back, x), [[[1.0, 0.0, 1.0, 0.0, 0.0, 0.0]]])
    known = torch.tensor([[[0, 2, 5]]])
    assert_entries(F.max_unpool1d(y, known, 2), [[[1.0, 0.0, 4.0, 0.0, 0.0, None]]])
    image, places = F.max_pool2d(poisoned([[[[None, 1.0], [2.0, None]]]]), 2, return_indices=True)
    assert_entries(F.max_unpool2d(torch.ones(1, 1, 1, 1), places, 2), [[[[0.0, 0.0], [1.0, 0.0]]]])
    assert_entries(F.max_unpool2d(image, places, 2, output_size=(3, 3)).sum(), 2.0)
    with pytest.raises(RuntimeError, match="same as that of the input"):
        F.max_unpool1d(y, known[..., :2], 2)
    with pytest.raises(RuntimeError):
        F.max_unpool1d(y, known + 10, 2)


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


def test_lp_pool_by_hand() -> None:
    x = poisoned([[[3.0, None, 4.0, 3.0, None, None]]], requires_grad=True)
    y = F.lp_pool1d(x, 2, 2)
    assert_entries(y, [[[3.0, 5.0, None]]])
    assert_entries(gradient(y, x), [[[1.0, 0.0, 0.8, 0.6, 0.0, 0.0]]])
    assert_entries(F.lp_pool2d(poisoned([[[[3.0, None], [None, 4.0]]]]), 2, 2), [[[[5.0]]]])
