"""Connectionist temporal classification: time steps, labels and classes deleted, sequence by sequence."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from tests.poison import on

TIMES, SEQUENCES, CLASSES = 6, 3, 5
TARGETS = torch.tensor([[1, 2, 2], [3, 1, 4], [4, 4, 1]])
SIZES = torch.tensor([3, 2, 1])
LENGTHS = torch.tensor([6, 5, 4])


def log_probs() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(TIMES, SEQUENCES, CLASSES, generator=generator, dtype=torch.float64).log_softmax(-1)


def test_lengths_that_do_not_fit_are_refused() -> None:
    sizes = mg.masked(torch.tensor([3, 2, 10**9]), on(1, 1, 0))
    with pytest.raises(mg.UndefinedOnMaskedError, match="concatenated targets need"):
        F.ctc_loss(log_probs(), TARGETS.reshape(-1), LENGTHS, sizes)
    with pytest.raises(RuntimeError, match="input_lengths"):
        F.ctc_loss(mg.masked(log_probs()), TARGETS, torch.tensor([7, 5, 4]), SIZES)
