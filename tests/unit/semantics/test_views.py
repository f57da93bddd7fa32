"""Views and storage: pattern and values move together; what has no mask is refused."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, on, poisoned


def test_the_values_must_be_viewable_an_expanded_mask_need_not() -> None:
    x = mg.masked(torch.arange(6.0).reshape(2, 3), on([1, 0, 1]))
    assert_entries(x.view(6), [0.0, None, 2.0, 3.0, None, 5.0])
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.T.view(6)


def test_a_view_as_another_dtype_needs_its_size() -> None:
    assert_entries(poisoned([1, None], torch.int32).view(torch.float32), [1.4e-45, None], dtype=torch.float32)
    with pytest.raises(TypeError, match=r"same size, 4 bytes, found torch.int8; .*Use view before"):
        poisoned([1, None], torch.int32).view(torch.int8)


def test_as_strided_scatter_has_the_derivative_that_torch_has_not() -> None:
    # torch 2.13 sends to x what belongs to the entries that were written over
    x, src = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 3), (2, 2)))
    mask = on([1, 0, 1], [1, 1, 0], [0, 1, 1])
    assert torch.autograd.gradcheck(
        lambda x, src: torch.as_strided_scatter(mg.masked(x, mask), src, (2, 2), (1, 2), 1).filled(0.0),
        (x, src),
    )


def test_storage_is_not_laid_out_anew() -> None:
    x = mg.masked(torch.ones(2), on(1, 0))
    for resize in (lambda: x.resize_(1), lambda: x.resize_as_(torch.ones(1))):
        with pytest.raises(mg.UndefinedOnMaskedError, match="reshape"):
            resize()
    assert x.tolist() == [1.0, None]
