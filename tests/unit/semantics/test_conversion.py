"""Conversions and questions: the pattern stays, gradients pass, the values answer."""

from __future__ import annotations

import torch

from tests.poison import assert_entries, poisoned


def test_a_transposed_tensor_can_be_made_contiguous() -> None:
    x = poisoned([[1.0, None], [3.0, 4.0]]).T
    assert not x.is_contiguous()
    assert x.contiguous().is_contiguous()
    assert_entries(x.contiguous(), [[1.0, 3.0], [None, 4.0]])
    assert x.clone(memory_format=torch.contiguous_format).is_contiguous()


def test_what_is_asked_of_a_tensor_is_answered_of_its_values() -> None:
    x = poisoned([[1.0, None, 4.0]])
    assert x.type() == "torch.DoubleTensor"
    assert torch.is_floating_point(x)
    assert not torch.is_complex(x)
    assert torch.numel(x) == 3
    assert x.is_same_size(torch.zeros(1, 3))
    assert torch.result_type(x, torch.ones(1, dtype=torch.complex64)) == torch.complex128
    assert (x.get_device(), x.storage_offset(), x[0, 1:].storage_offset()) == (-1, 0, 1)
    assert not x.is_conj()
    assert poisoned([1j], torch.complex64).conj().is_conj()
