"""Reading gradients: every place once, in at least float32, the way back to the same kind, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.gradients.gradient import Gradient, check_fits, read
from tests.unit.optim.kinds import FULL, coo, dense_of, specified

TENSORS = {name: kind for name, kind in FULL.items() if name != "whole"}


def merged_gradient(gradient: Tensor | mg.MaskedTensor, factor: Tensor | None = None) -> Gradient:
    return read(gradient, "a gradient").wide(factor).merged()


@pytest.mark.parametrize("kind", TENSORS.values(), ids=TENSORS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_there_and_back(kind: Callable[[Tensor], Tensor | mg.MaskedTensor], dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 2, 0, 0], [3, 0, -4, 0], [0, 0, 0, 0], [1, 5, 0, 0]], dtype=dtype)
    gradient = kind(values)
    merged = merged_gradient(gradient, torch.tensor(0.5))
    assert merged.values.dtype == torch.promote_types(dtype, torch.float32)
    back = merged.with_values(merged.values * 4).like(gradient)
    assert type(back) is type(gradient)
    assert back.layout == gradient.layout
    assert torch.equal(specified(back), specified(gradient))
    assert torch.equal(dense_of(back), (values * 2).to(merged.values.dtype))
    assert torch.equal(dense_of(gradient), values)


def test_only_distinct_ascending_rows_are_called_coalesced() -> None:
    t = torch.sparse_coo_tensor([[1, 0, 1]], torch.ones(3), (3,))
    for part, is_coalesced in ((read(t, "a gradient"), False), (merged_gradient(t), True)):
        back = part.like(t)
        assert isinstance(back, Tensor)
        assert back.is_coalesced() == is_coalesced
        assert back.to_dense().tolist() == [1.0, 2.0, 0.0]


def read_for(param: Tensor, grad: Any) -> Gradient:
    check_fits(param, grad, "gradient of p")
    return read(grad, "gradient of p")


def csr(pointer: list[int], plain: list[int]) -> Tensor:
    parts = torch.tensor(pointer), torch.tensor(plain), torch.ones(len(plain))
    return torch.sparse_csr_tensor(*parts, (4, 2), check_invariants=False)


JAGGED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


@pytest.mark.parametrize(
    ("grad", "error", "words"),
    [
        ("text", TypeError, "gradient of p must be a tensor or a MaskedTensor, got str"),
        (torch.ones(3, 2), ValueError, r"of p has shape \(3, 2\), but the parameter has shape \(4, 2\)"),
        (torch.ones(4, 2, dtype=torch.int64), TypeError, r"has dtype torch\.int64"),
        (torch.ones(4, 2, dtype=torch.complex64), TypeError, r"has dtype torch\.complex64"),
        (torch.ones(4, 2, device="meta"), ValueError, "is on meta, but the parameter is on cpu"),
        (coo([[0, 9, 1]], torch.ones(3, 2), (4, 2)), IndexError, "index 9 of entry 1 is outside the size 4"),
        (coo([[0, 1], [1, 2]], [1.0, 1.0], (4, 2)), IndexError, "dimension 1: index 2 of entry 1"),
        (csr([0, 2, 1, 1, 1], [0, 1]), ValueError, "must ascend from 0 to the number of stored positions, 2"),
        (csr([0, 1, 2, 2, 2], [0, 5]), IndexError, "positions must lie between 0 and 1, found index 5"),
        (JAGGED, TypeError, r"has layout torch\.jagged; expected a MaskedTensor or one of"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(grad: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_for(grad if grad is JAGGED else torch.zeros(4, 2), grad)
