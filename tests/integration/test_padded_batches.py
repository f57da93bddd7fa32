"""PyTorch's own modules, unmodified, on padded batches with garbage in the padding: as if every sequence were alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
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


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_a_transformer_encoder(training: bool, norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(
        WIDTH, 2, 8, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=D
    )
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).train(training)
    assert_as_if_alone(encoder, Padded())


def test_a_classifier_on_an_encoder() -> None:
    """Pooling, a head and a loss on top: the mean over each sentence's own tokens."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True, dtype=D)
    encoder, head = nn.TransformerEncoder(layer, 1), nn.Linear(WIDTH, 3, dtype=D)
    batch, labels = Padded(), torch.tensor([0, 2, 1, 1])
    loss = F.cross_entropy(head(encoder(batch.masked).mean(1)), labels)
    logits = torch.cat([head(encoder(sequence).mean(1)) for sequence in batch.alone()])
    right = F.cross_entropy(logits, labels)
    torch.testing.assert_close(loss, right)
    leaves = [batch.data, *encoder.parameters(), *head.parameters()]
    found, expected = torch.autograd.grad(loss, leaves), torch.autograd.grad(right, leaves)
    for grad, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(grad, wanted)


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(cls: type[nn.Module]) -> None:
    module = cls(WIDTH, 3, num_layers=2, bidirectional=True, batch_first=True, dtype=D)
    assert_as_if_alone(module, Padded(), lambda x: module(x)[0])


def test_convolutions_between_batch_normalisations() -> None:
    """Kernels of width 1 mix no steps, so that statistics over the batch are those of all its real steps."""
    model = nn.Sequential(
        nn.Conv1d(WIDTH, 5, 1, dtype=D), nn.BatchNorm1d(5, dtype=D), nn.ReLU(), nn.Conv1d(5, 3, 1, dtype=D)
    )
    batch = Padded()
    out = model(batch.masked.transpose(1, 2)).transpose(1, 2)
    assert out.mask.equal(batch.mask[..., None].expand(out.shape))
    statistics = model[1].running_mean.clone(), model[1].running_var.clone()
    model[1].reset_running_stats()
    right = model(batch.data[batch.mask].T[None])[0].T  # all real steps in one row
    torch.testing.assert_close(out[batch.mask].filled(nan), right)
    for one, other in zip(statistics, (model[1].running_mean, model[1].running_var), strict=True):
        torch.testing.assert_close(one, other)
    cotangent = torch.randn(right.shape, dtype=D)
    leaves = [batch.data, *model.parameters()]
    found = torch.autograd.grad((out[batch.mask].filled(0.0) * cotangent).sum(), leaves)
    for grad, expected in zip(found, torch.autograd.grad((right * cotangent).sum(), leaves), strict=True):
        torch.testing.assert_close(grad, expected)


def test_a_convolution_sees_padding_as_the_border() -> None:
    """A step whose window reaches beyond the end of its sequence gets what the border of a shorter one would give."""
    conv = nn.Conv1d(WIDTH, 3, 3, padding=1, dtype=D)
    batch = Padded()
    out = conv(batch.masked.transpose(1, 2)).transpose(1, 2)
    for i, (length, sequence) in enumerate(zip(LENGTHS, batch.alone(), strict=True)):
        torch.testing.assert_close(
            out.filled(nan)[i, :length], conv(sequence.transpose(1, 2)).transpose(1, 2)[0]
        )
