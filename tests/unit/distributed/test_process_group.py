"""What travels, and in which dtype."""

from __future__ import annotations

from typing import Any

import torch

import maskgrad as mg
from maskgrad.distributed.process_group import ProcessGroup, as_bytes, from_bytes
from tests.ranks import run_on_ranks


def test_bytes_of_views_and_conjugates() -> None:
    x = torch.randn(4, 3, dtype=torch.complex64)
    for view in (x.t(), x.conj(), x.conj().imag, x[::2]):
        found, _ = from_bytes(as_bytes(view), view.dtype, tuple(view.shape))
        assert torch.equal(found, view)


def _texts(rank: int, world_size: int) -> Any:
    ranks = ProcessGroup(None, "a test")
    told = ranks.gather_texts("ä" * rank)
    return told, ranks.device.type, ranks.transport(torch.device("meta")).type


def test_texts() -> None:
    assert run_on_ranks(_texts, 2) == [(["", "ä"], "cpu", "cpu")] * 2


def test_errors_are_a_family() -> None:
    assert issubclass(mg.errors.LostRankError, RuntimeError)
    assert issubclass(mg.errors.LostRankError, mg.errors.MaskgradError)
