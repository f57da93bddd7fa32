"""PyTorch's own modules, unmodified, on padded batches with garbage in the padding: as if every sequence were alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
from torch import Tensor

import maskgrad as mg
from tests.poison import inf, nan

D = torch.float64
LENGTHS = [5, 2, 6, 1]
STEPS, WIDTH = 6, 4


class Padded:
    """A padded batch (N, T, width): a leaf with garbage in its padding, and the same data without any."""

    def __init__(self, width: int = WIDTH) -> None:
        clean = torch.randn(len(LENGTHS), STEPS, width, dtype=D)
        self.mask = torch.arange(STEPS) < torch.tensor(LENGTHS)[:, None]
        garbage = torch.tensor([nan, inf, -inf, 1e38], dtype=D).repeat(clean.numel() // 4)
        self.data = torch.where(self.mask[..., None], clean, garbage.reshape(clean.shape)).requires_grad_()
        self.masked = mg.from_lengths(self.data, torch.tensor(LENGTHS), dim=1)

    def alone(self) -> list[Tensor]:
        """Each sequence by itself, a batch of one."""
        return [self.data[i : i + 1, :length] for i, length in enumerate(LENGTHS)]


def assert_as_if_alone(model: nn.Module, batch: Padded, run: Callable[[Any], Any] | None = None) -> None:
    """Values, gradients of the data, gradients of the parameters."""
    run = run or model
    leaves = [batch.data, *model.parameters()]
    out = run(batch.masked)
    assert out.mask.equal(batch.mask[..., None].expand(out.shape))
    cotangent = torch.randn(out.shape, dtype=D)
    total: Any = 0
    for i, (length, sequence) in enumerate(zip(LENGTHS, batch.alone(), strict=True)):
        right = run(sequence)
        torch.testing.assert_close(out.filled(0.0)[i, :length], right[0])
        total = total + (right[0] * cotangent[i, :length]).sum()
    found = torch.autograd.grad((out.filled(0.0) * cotangent).sum(), leaves, allow_unused=True)
    for grad, expected in zip(found, torch.autograd.grad(total, leaves, allow_unused=True), strict=True):
        torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(cls: type[nn.Module]) -> None:
    module = cls(WIDTH, 3, num_layers=2, bidirectional=True, batch_first=True, dtype=D)
    assert_as_if_alone(module, Padded(), lambda x: module(x)[0])


def test_a_convolution_sees_padding_as_the_border() -> None:
    """A step whose window reaches beyond the end of its sequence gets what the border of a shorter one would give."""
    conv = nn.Conv1d(WIDTH, 3, 3, padding=1, dtype=D)
    batch = Padded()
    out = conv(batch.masked.transpose(1, 2)).transpose(1, 2)
    for i, (length, sequence) in enumerate(zip(LENGTHS, batch.alone(), strict=True)):
        torch.testing.assert_close(
            out.filled(nan)[i, :length], conv(sequence.transpose(1, 2)).transpose(1, 2)[0]
        )
