"""Views: pattern and values move together, storage stays shared, gradients move back."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, nan, on, poisoned


def test_views_share_storage() -> None:
    data = torch.tensor([[1.0, nan], [3.0, 4.0]])
    x = mg.masked(data, on([1, 0], [1, 1]))
    for view in (x.T, x.view(-1), x[0], x.unsqueeze(0), x.detach(), x.expand(2, 2, 2)):
        assert view.get_mask().untyped_storage().data_ptr() == x.mask.untyped_storage().data_ptr()
        assert view._values.untyped_storage().data_ptr() == data.untyped_storage().data_ptr()


def test_the_values_must_be_viewable_an_expanded_mask_need_not() -> None:
    x = mg.masked(torch.arange(6.0).reshape(2, 3), on([1, 0, 1]))
    assert_entries(x.view(6), [0.0, None, 2.0, 3.0, None, 5.0])
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.T.view(6)


def test_a_view_as_another_dtype_needs_its_size() -> None:
    assert_entries(poisoned([1, None], torch.int32).view(torch.float32), [1.4e-45, None], dtype=torch.float32)
    with pytest.raises(TypeError, match=r"same size, 4 bytes, found torch.int8; .*Use view before"):
        poisoned([1, None], torch.int32).view(torch.int8)
