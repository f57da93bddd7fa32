"""Masks in their smallest shape: views that hold one Boolean for all that repeat it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from maskgrad.kernels.smallest import any_of, any_of_each, intersected, is_complete, smallest

ROWS = torch.tensor([True, False, True])


def _expanded(*shape: int) -> Tensor:
    """True and False in turns along dimension 1, the same along all others."""
    return ROWS[None, :, None].expand(*shape)


def test_what_repeats_has_size_one() -> None:
    few = smallest(_expanded(4, 3, 5))
    assert few.shape == (1, 3, 1)
    assert few.data_ptr() == ROWS.data_ptr()
    mask = torch.rand(3, 4) < 0.5
    assert smallest(mask) is mask
    assert smallest(ROWS[:, None].expand(3, 0)).shape == (3, 0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_expanded(4, 3, 5), torch.tensor([True, False, True, True, False]).expand(4, 3, 5)),
        (_expanded(4, 3, 5), torch.rand(4, 3, 5) < 0.5),
        (_expanded(4, 3, 5), torch.rand(5) < 0.5),
        (torch.rand(3, 1) < 0.5, torch.rand(1, 4) < 0.5),
        *((_expanded(4, 3, 5), torch.tensor(known).expand(4, 3, 5)) for known in (True, False)),
        (_expanded(1, 3, 5), _expanded(4, 3, 1)),
    ],
)
def test_intersections_are_those_of_whole_masks_and_kept_small(one: Tensor, other: Tensor) -> None:
    expected = one.contiguous() & other.contiguous()
    for found in (intersected(one, other), intersected(other, one)):
        assert found.shape == expected.shape
        assert torch.equal(found, expected)
        wanted = one.untyped_storage().nbytes() * other.untyped_storage().nbytes()
        assert found.untyped_storage().nbytes() <= wanted
    assert intersected(one, one) is one


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", [(), (0,), (-1,), (0, 1), (1, -1), (0, 1, 2)])
def test_whether_any_entry_is_specified(dims: tuple[int, ...], keepdim: bool) -> None:
    for mask in (torch.rand(4, 3, 5) < 0.2, _expanded(4, 3, 5), _expanded(4, 3, 5).transpose(0, 1)):
        whole = mask.contiguous()
        expected = whole.any(dims, keepdim=keepdim) if dims else whole
        for found in (
            any_of(mask, dims, keepdim),
            torch.func.vmap(lambda m: any_of(m, dims, keepdim))(mask[None])[0],
        ):
            assert found.dtype == torch.bool
            assert torch.equal(found, expected)


def test_of_nothing_no_entry_and_every_entry_is_specified() -> None:
    for mask in (torch.zeros(3, 0, dtype=torch.bool), torch.ones(3, 1, dtype=torch.bool).expand(3, 4)[:, :0]):
        assert any_of(mask, (1,)).tolist() == [False] * 3
        assert is_complete(mask)
    assert not is_complete(_expanded(4, 3, 5))
    assert is_complete(torch.tensor(True).expand(100, 100))


def test_a_complete_mask_is_one_true_and_leaves_the_other_as_it_is() -> None:
    complete, mask = any_of_each(torch.eye(4).bool(), (1,), torch.Size((4, 5))), torch.rand(4, 5) < 0.5
    assert smallest(complete).numel() == 1
    assert all(intersected(*x) is mask for x in ((mask, complete), (complete, mask), (complete[0], mask)))
    partly = any_of_each(torch.tensor([[False, True], [False, False]]), (1,), torch.Size((2, 3)))
    assert (partly.stride(1), partly.tolist()) == (0, [[True] * 3, [False] * 3])
