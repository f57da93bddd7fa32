"""Every place once, in at least float32, and the way back to the same kind of gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.gradients.gradient import Gradient, read
from tests.unit.optim.kinds import FULL, dense_of

TENSORS = {name: kind for name, kind in FULL.items() if name != "whole"}


def merged_gradient(gradient: Tensor | mg.MaskedTensor, factor: Tensor | None = None) -> Gradient:
    return read(gradient, "a gradient").wide(factor).merged()


@pytest.mark.parametrize("kind", TENSORS.values(), ids=TENSORS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_there_and_back(kind: Callable[[Tensor], Tensor | mg.MaskedTensor], dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 2, 0, 0], [3, 0, -4, 0], [0, 0, 0, 0], [1, 5, 0, 0]], dtype=dtype)
    gradient = kind(values)
    merged = merged_gradient(gradient, torch.tensor(0.5))
    assert merged.values.dtype == torch.promote_types(dtype, torch.float32)
    back = merged.with_values(merged.values * 4).like(gradient)
    assert type(back) is type(gradient)
    assert back.layout == gradient.layout
    assert torch.equal(dense_of(back), (values * 2).to(merged.values.dtype))
    assert torch.equal(dense_of(gradient), values)
    if isinstance(gradient, mg.MaskedTensor):
        assert isinstance(back, mg.MaskedTensor)
        assert torch.equal(back.mask, gradient.mask)
    trained = torch.tensor([[True, False, True, True], [True] * 4, [False] * 4, [False, True, True, True]])
    part = merged_gradient(gradient)
    counted = part.counted(trained)
    assert counted is not None
    expected = torch.where(trained, values, 0)
    assert torch.where(counted, part.values, 0).double().sum() == expected.double().sum()
    kept = part.values[counted]
    assert sorted(kept[kept != 0].tolist()) == sorted(expected[expected != 0].tolist())


def test_only_distinct_ascending_rows_are_called_coalesced() -> None:
    t = torch.sparse_coo_tensor([[1, 0, 1]], torch.ones(3), (3,))
    for part, is_coalesced in ((read(t, "a gradient"), False), (merged_gradient(t), True)):
        back = part.like(t)
        assert isinstance(back, Tensor)
        assert back.is_coalesced() == is_coalesced
        assert back.to_dense().tolist() == [1.0, 2.0, 0.0]


def test_empty_gradients_and_indices_out_of_range() -> None:
    empty = torch.sparse_coo_tensor(torch.empty(1, 0).long(), torch.empty(0, 2), (3, 2))
    assert merged_gradient(empty).values.shape == (0, 2)
    assert merged_gradient(empty).counted(torch.ones(3, 2).bool()).shape == (0, 2)  # type: ignore[union-attr]
    outside = torch.sparse_coo_tensor([[3]], torch.ones(1), (3,), check_invariants=False)
    with pytest.raises(IndexError, match="3"):
        merged_gradient(outside)
