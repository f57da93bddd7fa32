"""Packed sequences and cu_seqlens: there, back, beside PyTorch's own functions."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import maskgrad as mg
from tests.poison import gradient, on, poisoned

D = torch.float64
BATCHES = ([3, 1, 4, 2], [4], [2, 2], [5, 3, 1], [1, 1, 1])


def jagged(lengths: list[int], *features: int) -> tuple[mg.MaskedTensor, torch.Tensor]:
    rows = torch.randn(sum(lengths), *features, dtype=D, requires_grad=True)
    return mg.from_offsets(rows, torch.tensor([0, *lengths]).cumsum(0), max(lengths) + 2), rows


@pytest.mark.parametrize("features", [(), (2,), (2, 3)])
@pytest.mark.parametrize("lengths", BATCHES)
@pytest.mark.parametrize("padded", [False, True])
def test_packed_as_torch_packs(lengths: list[int], features: tuple[int, ...], padded: bool) -> None:
    x, rows = jagged(lengths, *features)
    found = mg.interop.to_packed(x.to_dense() if padded else x)
    right = pack_padded_sequence(x.filled(7.0), torch.tensor(lengths), True, enforce_sorted=False)
    for one, other in zip(found, right, strict=True):
        assert one.equal(other)
    weight = torch.rand_like(found.data)
    torch.testing.assert_close(
        torch.autograd.grad(found.data, rows, weight), torch.autograd.grad(right.data, rows, weight)
    )


@pytest.mark.parametrize("lengths", BATCHES)
@pytest.mark.parametrize("enforce_sorted", [False, True])
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_from_what_torch_packs(lengths: list[int], enforce_sorted: bool, layout: torch.layout) -> None:
    lengths = sorted(lengths, reverse=True) if enforce_sorted else lengths
    parts = [torch.randn(length, 2, dtype=D, requires_grad=True) for length in lengths]
    packed = pack_sequence(parts, enforce_sorted)
    x = mg.interop.from_packed(packed, layout)
    assert x.layout == layout
    right, found_lengths = pad_packed_sequence(packed, batch_first=True)
    assert mg.interop.lengths(x).equal(found_lengths)
    assert x.filled(0.0).equal(right)
    (x.to_dense() * 3).filled(0.0).sum().backward()
    assert all((part.grad == 3).all() for part in parts)


def test_derivatives_by_finite_differences() -> None:
    x, rows = jagged([2, 3, 1], 2)
    packed = mg.interop.to_packed(x)

    def there(rows: torch.Tensor) -> torch.Tensor:
        return mg.interop.to_packed(mg.from_offsets(rows, x.offsets())).data ** 3

    def back(data: torch.Tensor) -> torch.Tensor:
        return mg.interop.from_packed(PackedSequence(data, *packed[1:])).values() ** 3

    for function in (there, back):
        assert torch.autograd.gradcheck(function, rows)
        assert torch.autograd.gradgradcheck(function, rows)


def test_padding_is_not_read() -> None:
    data = torch.tensor([[1.0, float("nan")], [3.0, 4.0]], requires_grad=True)
    packed = mg.interop.to_packed(mg.from_lengths(data, torch.tensor([1, 2])))
    assert packed.data.tolist() == [3.0, 1.0, 4.0]
    packed.data.square().sum().backward()
    assert data.grad.tolist() == [[2.0, 0.0], [6.0, 8.0]]


def test_time_may_come_first() -> None:
    x, _ = jagged([2, 3], 4)
    assert mg.interop.to_packed(x.transpose(0, 1)).data.equal(mg.interop.to_packed(x).data)
    assert mg.interop.to_cu_seqlens(x.transpose(0, 1)).cu_seqlens.tolist() == [0, 2, 5]


def test_what_cannot_be_packed() -> None:
    x, _ = jagged([2, 0, 3])
    with pytest.raises(ValueError, match=r"length 1 or more, found sequence 1 empty; remove them"):
        mg.interop.to_packed(x)
    assert mg.interop.to_packed(x[mg.interop.lengths(x) > 0]).batch_sizes.tolist() == [2, 2, 1]
    with pytest.raises(ValueError, match=r"found no sequences"):
        mg.interop.to_packed(mg.from_offsets(torch.zeros(0), torch.tensor([0])))
    with pytest.raises(TypeError, match=r"to_packed: x must be a MaskedTensor, found Tensor"):
        mg.interop.to_packed(torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"position 1 of sequence 0 is unspecified and the next one is not"):
        mg.interop.to_packed(poisoned([[1.0, None, 3.0]]))
    several = mg.masked(torch.ones(2, 2, 3), on([1, 1, 0], [1, 0, 0])[:, None].expand(2, 2, 3).contiguous())
    with pytest.raises(ValueError, match=r"one batch dimension, found 2 in shape \(2, 2, 3\)"):
        mg.interop.to_packed(several.to_jagged(2))


def test_packed_sequences_that_contradict_themselves() -> None:
    with pytest.raises(TypeError, match=r"found list; build one with pack_sequence"):
        mg.interop.from_packed([torch.ones(2)])
    with pytest.raises(ValueError, match=r"layout must be torch.strided or torch.jagged"):
        mg.interop.from_packed(pack_sequence([torch.ones(2)]), layout=torch.sparse_coo)
    for sizes in ([1, 2], [2, 2], [], [3, 0]):
        packed = PackedSequence(torch.ones(3), torch.tensor(sizes, dtype=torch.int64))
        with pytest.raises(ValueError, match=r"batch_sizes of packed must descend"):
            mg.interop.from_packed(packed)
    packed = PackedSequence(torch.ones(3), torch.tensor([2, 1]), torch.tensor([0, 1]), torch.tensor([0, 0]))
    with pytest.raises(ValueError, match=r"unsorted_indices of packed must contain each of 2 sequences once"):
        mg.interop.from_packed(packed)


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
