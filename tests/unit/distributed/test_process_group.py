"""What travels, and in which dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad.distributed.process_group import ProcessGroup, as_bytes, from_bytes
from tests.ranks import run_on_ranks


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.int32, torch.bool, torch.uint8]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (5, 7)])
def test_bytes_and_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    first = torch.randn(shape).mul(10).to(dtype)
    second = torch.arange(3.0)
    message = torch.cat([as_bytes(first), as_bytes(second)])
    found, rest = from_bytes(message, dtype, shape)
    assert torch.equal(found, first)
    found, rest = from_bytes(rest, torch.float32, (3,))
    assert torch.equal(found, second)
    assert not rest.numel()


def test_bytes_of_views_and_conjugates() -> None:
    x = torch.randn(4, 3, dtype=torch.complex64)
    for view in (x.t(), x.conj(), x.conj().imag, x[::2]):
        found, _ = from_bytes(as_bytes(view), view.dtype, tuple(view.shape))
        assert torch.equal(found, view)


def test_the_dtype_in_which_sums_travel() -> None:
    summable = ProcessGroup.summable
    assert summable(torch.float16) is summable(torch.bfloat16) is torch.float32
    assert summable(torch.int8) is summable(torch.bool) is torch.int64
    assert summable(torch.complex32) is torch.complex64
    assert summable(torch.float64) is torch.float64


def _texts(rank: int, world_size: int) -> Any:
    ranks = ProcessGroup(None, "a test")
    told = ranks.gather_texts("ä" * rank)
    return told, ranks.device.type, ranks.transport(torch.device("meta")).type


def test_texts() -> None:
    assert run_on_ranks(_texts, 2) == [(["", "ä"], "cpu", "cpu")] * 2


def test_errors_are_a_family() -> None:
    assert issubclass(mg.errors.LostRankError, RuntimeError)
    assert issubclass(mg.errors.LostRankError, mg.errors.MaskgradError)
