"""What travels, and in which dtype."""

from __future__ import annotations

from typing import Any

import torch

import maskgrad as mg
from maskgrad.distributed.process_group import ProcessGroup
from tests.ranks import run_on_ranks


def _texts(rank: int, world_size: int) -> Any:
    ranks = ProcessGroup(None, "a test")
    told = ranks.gather_texts("ä" * rank)
    return told, ranks.device.type, ranks.transport(torch.device("meta")).type


def test_texts() -> None:
    assert run_on_ranks(_texts, 2) == [(["", "ä"], "cpu", "cpu")] * 2


def test_errors_are_a_family() -> None:
    assert issubclass(mg.errors.LostRankError, RuntimeError)
    assert issubclass(mg.errors.LostRankError, mg.errors.MaskgradError)
