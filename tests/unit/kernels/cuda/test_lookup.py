"""Looking rows up on CUDA devices, against indexing."""

from __future__ import annotations

import pytest
import torch

from tests.unit.kernels.bodies import cuda

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("row", [(), (1,), (17,), (2, 3), (0,)])
def test_rows_are_moved_bit_for_bit(dtype, row):
    table = torch.randn(50, *row).to(dtype)
    table.view(-1)[::3] = torch.nan
    for number, index_dtype in ((0, torch.int64), (1, torch.int32), (70, torch.int64), (69, torch.int32)):
        indices = torch.randint(50, (number,), dtype=index_dtype)
        found, expected = cuda.lookup_rows(table, indices), table[indices.long()]
        assert found.dtype == dtype
        assert found.shape == (number, *row)
        assert found.is_contiguous()
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))


def test_gaps_in_table_and_indices_and_rows_wider_than_a_tile():
    indices = torch.randint(6, (9,))
    for table in (
        torch.randn(6, 2, 1500)[:, 1],
        torch.randn(6, 4, 3).permute(0, 2, 1),
        torch.randn(3, 6).t(),
        torch.randn(6, 1).expand(6, 5),
        torch.randn(12, 4)[::2, 1:],
        torch.randn(6, 5, requires_grad=True),
    ):
        found = cuda.lookup_rows(table, indices[::2])
        assert not found.requires_grad
        assert torch.equal(found, table.detach()[indices[::2]])


def test_a_table_without_rows():
    assert cuda.lookup_rows(torch.empty(0, 3), torch.empty(0, dtype=torch.int64)).shape == (0, 3)


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_outside_the_table_is_named(device, index):
    if device.type == "cuda":
        pytest.skip("an error of the device makes it useless for all later tests")
    with pytest.raises(IndexError, match=rf"must lie in \[0, 5\).*indices\[1\] is {index}"):
        cuda.lookup_rows(torch.ones(5, 2), torch.tensor([0, index, 1]))


def test_places_beyond_32_bits(monkeypatch):
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    table, indices = torch.randn(30, 7), torch.randint(30, (40,), dtype=torch.int32)
    assert torch.equal(cuda.lookup_rows(table, indices), table[indices.long()])
