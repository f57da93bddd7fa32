"""Packed sequences and cu_seqlens: there, back, beside PyTorch's own functions."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import maskgrad as mg
from tests.poison import gradient, on, poisoned

D = torch.float64
BATCHES = ([3, 1, 4, 2], [4], [2, 2], [5, 3, 1], [1, 1, 1])


def jagged(lengths: list[int], *features: int) -> tuple[mg.MaskedTensor, torch.Tensor]:
    rows = torch.randn(sum(lengths), *features, dtype=D, requires_grad=True)
    return mg.from_offsets(rows, torch.tensor([0, *lengths]).cumsum(0), max(lengths) + 2), rows


@pytest.mark.parametrize("lengths", BATCHES)
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_packed_by_torch_and_back(lengths: list[int], layout: torch.layout) -> None:
    x, rows = jagged(lengths, 2)
    padded = x.to_dense().filled(0.0)
    packed = pack_padded_sequence(padded, mg.interop.lengths(x).cpu(), batch_first=True, enforce_sorted=False)
    back = mg.from_lengths(*pad_packed_sequence(packed, batch_first=True), layout=layout)
    assert mg.interop.lengths(back).tolist() == lengths
    assert back.to_jagged().values().equal(rows)
    assert gradient(back.to_dense().filled(0.0) * 3, rows).eq(3).all()


def test_tensors_without_offsets_are_refused() -> None:
    with pytest.raises(TypeError, match=r"to_cu_seqlens: x must be a MaskedTensor, found Tensor"):
        mg.interop.to_cu_seqlens(torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"position 1 of sequence 0 is unspecified and the next one is not"):
        mg.interop.to_cu_seqlens(poisoned([[1.0, None, 3.0]]))
    several = mg.masked(torch.ones(2, 2, 3), on([1, 1, 0], [1, 0, 0])[:, None].expand(2, 2, 3).contiguous())
    with pytest.raises(ValueError, match=r"one batch dimension, found 2 in shape \(2, 2, 3\)"):
        mg.interop.to_cu_seqlens(several.to_jagged(2))


@pytest.mark.parametrize("lengths", [*BATCHES, [0, 0], [2, 0, 1]])
def test_cu_seqlens_there_and_back(lengths: list[int]) -> None:
    x, rows = jagged(lengths, 2)
    values, cu_seqlens, most = mg.interop.to_cu_seqlens(x)
    assert values.data_ptr() == rows.data_ptr()
    assert cu_seqlens.dtype == torch.int32
    assert most == x.shape[1] >= max(lengths)
    back = mg.from_offsets(values, cu_seqlens, most)
    assert back.shape == x.shape
    assert back.offsets().equal(x.offsets())
    padded = mg.interop.to_cu_seqlens(x.to_dense())
    assert padded.values.equal(values)
    assert padded.cu_seqlens.equal(cu_seqlens)
    assert padded.max_length == most
    assert gradient(padded.values * 2, rows).eq(2).all()


def test_more_rows_than_int32_numbers() -> None:
    rows = torch.zeros(1).expand(2**31)
    pattern = mg.from_offsets(torch.zeros(1), torch.tensor([0, 1]))._pattern
    with pytest.raises(ValueError, match=r"int32 cannot index 2147483648 rows"):
        mg.interop.to_cu_seqlens(mg.MaskedTensor(rows, pattern))
