"""Batch and ragged dimension flattened into one, as in ``logits.view(-1, classes)``: rows stay rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from tests.poison import nan

LENGTHS = torch.tensor([3, 0, 4])
REAL = torch.arange(4) < LENGTHS[:, None]


def batch() -> tuple[mg.MaskedTensor, mg.MaskedTensor, Tensor]:
    """The same data jagged and with a Boolean mask, NaN in the padding, and the leaf of both."""
    data = torch.where(REAL[..., None], torch.randn(3, 4, 6, dtype=torch.float64), nan).requires_grad_()
    return mg.from_lengths(data, LENGTHS, layout=torch.jagged), mg.from_lengths(data, LENGTHS), data


@pytest.mark.every
@pytest.mark.parametrize(
    ("operation", "layout"),
    [
        (lambda x: x.flatten(0, 1), torch.jagged),
        (lambda x: x.reshape(12, 6), torch.jagged),
        (lambda x: x.reshape(-1, 2, 3), torch.jagged),
        (lambda x: x.view(-1, 6).T, torch.jagged),
        (lambda x: x.view(-1, 6).unflatten(0, (3, -1)), torch.jagged),
        (lambda x: x.view(-1, 6).unflatten(0, (3, -1)).sum(1), torch.strided),
        (lambda x: x.view(-1, 6).sum(1), torch.jagged),
        (lambda x: x.view(-1, 6).softmax(-1), torch.jagged),
        (lambda x: F.linear(x.view(-1, 6), torch.ones(2, 6, dtype=torch.float64)), torch.jagged),
        (
            lambda x: torch.addmm(torch.ones(2).double(), x.view(-1, 6), torch.ones(6, 2).double()),
            torch.jagged,
        ),
        (lambda x: x.view(-1, 6) + torch.arange(72.0, dtype=torch.float64).view(12, 6), torch.jagged),
        (lambda x: x.view(-1, 6).sum(0), torch.strided),
        (lambda x: x.view(-1, 6).softmax(0), torch.jagged),
        (lambda x: x.view(-1, 6).sort(0).values, torch.strided),
        (lambda x: x.view(-1, 6)[3], torch.strided),
        (lambda x: x.view(-1, 6)[2:7], torch.strided),
    ],
)
def test_operations_on_flattened_rows_are_those_on_a_mask(operation: Any, layout: torch.layout) -> None:
    jagged, boolean, data = batch()
    found, expected = operation(jagged), operation(boolean)
    assert found.layout == layout
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.filled(0.0), expected.filled(0.0))
    gradients = [torch.autograd.grad(y.square().sum(), data)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_labels_behind_the_end_are_not_read(reduction: str) -> None:
    jagged, _, data = batch()
    for padding in (0, 99, -7):
        labels = torch.where(REAL, torch.arange(12).reshape(3, 4) % 6, padding)
        found = F.cross_entropy(jagged.view(-1, 6), labels.view(-1), reduction=reduction)
        expected = F.cross_entropy(data[REAL], labels[REAL], reduction=reduction)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(loss, data, retain_graph=True)[0] for loss in (found, expected)]
        torch.testing.assert_close(*gradients)


def test_logits_meet_the_tokens_that_follow() -> None:
    """Logits and labels of other lengths meet in the shorter of each pair."""
    jagged, _, data = batch()
    ids = mg.from_sequences(
        [torch.tensor([1, 2, 3]), torch.tensor([]).long(), torch.tensor([4, 5, 0, 1])], layout=torch.jagged
    )
    found = F.cross_entropy(jagged[:, :-1].reshape(-1, 6), ids[:, 1:].reshape(-1))
    logits = torch.cat([data[0, :2], data[2, :3]])
    torch.testing.assert_close(found, F.cross_entropy(logits, torch.tensor([2, 3, 5, 0, 1])))


def test_a_linear_layer_along_the_positions_sees_the_frame() -> None:
    """As many positions as features: the rows alone would fit."""
    weight = torch.randn(5, 4, dtype=torch.float64)
    x, y = (
        mg.from_lengths(torch.ones(3, 4, 4).double(), LENGTHS, layout=t)
        for t in (torch.jagged, torch.strided)
    )
    found, expected = (F.linear(t.transpose(1, 2), weight) for t in (x, y))
    assert torch.equal(found.to_dense().mask, expected.mask)
    torch.testing.assert_close(found.to_dense().filled(0), expected.filled(0))
