"""Conversions and questions: the pattern stays, gradients pass, the values answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.poison import assert_entries, gradient, poisoned

X = [1.0, None, 4.0]


@pytest.mark.parametrize(
    ("convert", "dtype"),
    [
        (lambda x: x.to(torch.float16), torch.float16),
        (lambda x: x.to("cpu", torch.int32), torch.int32),
        (lambda x: x.to(torch.zeros(1, dtype=torch.int8)), torch.int8),
        (lambda x: x.to(poisoned([1j], torch.complex64)), torch.complex64),
        (lambda x: x.float(), torch.float32),
        (lambda x: x.half(), torch.float16),
        (lambda x: x.bfloat16(), torch.bfloat16),
        (lambda x: x.long(), torch.int64),
        (lambda x: x.bool(), torch.bool),
        (lambda x: x.cfloat(), torch.complex64),
        (lambda x: x.type(torch.int16), torch.int16),
        (lambda x: x.type_as(torch.zeros(1)), torch.float32),
        (lambda x: x.double(), torch.float64),
        (lambda x: x.cpu(), torch.float64),
        (lambda x: x.clone(), torch.float64),
        (lambda x: x.contiguous(), torch.float64),
    ],
)
def test_values_are_converted_and_the_pattern_stays(convert: Any, dtype: torch.dtype) -> None:
    expected = [True, None, True] if dtype == torch.bool else X
    assert_entries(convert(poisoned(X)), expected, dtype=dtype)


def test_gradients_pass_in_the_dtype_of_the_operand() -> None:
    x = poisoned(X, torch.float16, requires_grad=True)
    assert gradient(x.double() * 2, x).tolist() == [2.0, 0.0, 2.0]
    assert gradient(x.double() * 2, x).dtype == torch.float16


def test_booleans_become_numbers() -> None:
    assert_entries(poisoned([True, None, False], torch.bool).to(torch.float32), [1.0, None, 0.0])


def test_the_mask_follows_to_the_device() -> None:
    y = poisoned(X).to("meta")
    assert y.device.type == y.mask.device.type == "meta"


def test_a_plain_tensor_only_borrows_dtype_and_device() -> None:
    y = torch.ones(2).to(poisoned(X))
    assert type(y) is torch.Tensor
    assert y.dtype == torch.float64


def test_a_clone_shares_nothing() -> None:
    x = poisoned(X)
    y = x.clone()
    assert y.data_ptr() != x.data_ptr()
    assert y.mask.data_ptr() != x.mask.data_ptr()
    assert x.contiguous().data_ptr() == x.data_ptr()


def test_a_transposed_tensor_can_be_made_contiguous() -> None:
    x = poisoned([[1.0, None], [3.0, 4.0]]).T
    assert not x.is_contiguous()
    assert x.contiguous().is_contiguous()
    assert_entries(x.contiguous(), [[1.0, 3.0], [None, 4.0]])
    assert x.clone(memory_format=torch.contiguous_format).is_contiguous()


def test_questions() -> None:
    x = poisoned([X])
    assert x.type() == "torch.DoubleTensor"
    assert torch.is_floating_point(x)
    assert not torch.is_complex(x)
    assert torch.numel(x) == 3
    assert x.is_same_size(torch.zeros(1, 3))
    assert torch.result_type(x, torch.ones(1, dtype=torch.complex64)) == torch.complex128
    assert (x.get_device(), x.storage_offset(), x[0, 1:].storage_offset()) == (-1, 0, 1)
    assert not x.is_conj()
    assert poisoned([1j], torch.complex64).conj().is_conj()
