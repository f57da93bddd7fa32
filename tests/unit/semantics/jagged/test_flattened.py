"""Batch and ragged dimension flattened into one, as in ``logits.view(-1, classes)``: rows stay rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg

NAN = float("nan")
LENGTHS = torch.tensor([3, 0, 4])


def batch() -> tuple[mg.MaskedTensor, mg.MaskedTensor, Tensor]:
    """The same data jagged and with a Boolean mask, NaN in the padding, and the leaf of both."""
    torch.manual_seed(0)
    data = torch.randn(3, 4, 6, dtype=torch.float64)
    data[0, 3:], data[1], data[2, 4:] = NAN, NAN, NAN
    data.requires_grad_()
    return mg.from_lengths(data, LENGTHS, layout=torch.jagged), mg.from_lengths(data, LENGTHS), data


def assert_same(found: mg.MaskedTensor, expected: mg.MaskedTensor, layout: torch.layout) -> None:
    assert found.layout == layout
    assert found.shape == expected.shape
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.filled(0.0), expected.filled(0.0))


@pytest.mark.parametrize(
    "flatten",
    [
        lambda x: x.flatten(0, 1),
        lambda x: x.view(-1, 6),
        lambda x: x.reshape(12, 6),
        lambda x: x.reshape(-1, 2, 3),
        lambda x: x.view(-1, 6).T,
        lambda x: x.view(-1, 6).unsqueeze(0),
    ],
)
def test_rows_stay_rows(flatten) -> None:
    jagged, boolean, data = batch()
    assert_same(flatten(jagged), flatten(boolean), torch.jagged)
    flatten(jagged).square().sum().backward()
    expected = torch.where(boolean.mask, 2 * data.detach(), 0)
    torch.testing.assert_close(data.grad, expected)


@pytest.mark.parametrize(
    "back", [lambda x: x.view(3, 4, 6), lambda x: x.unflatten(0, (3, -1)), lambda x: x.reshape(3, -1, 6)]
)
def test_flattened_rows_come_back_as_sequences(back) -> None:
    jagged, boolean, _ = batch()
    found = back(jagged.view(-1, 6) * 2)
    assert_same(found, boolean * 2, torch.jagged)
    assert_same(found.sum(1), (boolean * 2).sum(1), torch.strided)


@pytest.mark.parametrize(
    ("operation", "layout"),
    [
        (lambda x: x.sum(1), torch.jagged),
        (lambda x: x.softmax(-1), torch.jagged),
        (lambda x: F.linear(x, torch.ones(2, 6, dtype=torch.float64)), torch.jagged),
        (lambda x: torch.addmm(torch.ones(2).double(), x, torch.ones(6, 2).double()), torch.jagged),
        (lambda x: x + torch.arange(72.0, dtype=torch.float64).view(12, 6), torch.jagged),
        (lambda x: x.sum(0), torch.strided),
        (lambda x: x.mean(0), torch.strided),
        (lambda x: x.softmax(0), torch.jagged),
        (lambda x: x.sort(0).values, torch.strided),
        (lambda x: x.argsort(0), torch.strided),
        (lambda x: x[3], torch.strided),
        (lambda x: x[2:7], torch.strided),
    ],
)
def test_operations_on_flattened_rows_are_those_on_a_mask(operation, layout) -> None:
    jagged, boolean, _ = batch()
    assert_same(operation(jagged.view(-1, 6)), operation(boolean.view(-1, 6)), layout)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("padding", [0, 99, -7])
def test_labels_behind_the_end_are_not_read(reduction: str, padding: int) -> None:
    jagged, _, data = batch()
    labels = torch.arange(12).reshape(3, 4) % 6
    labels = torch.where(torch.arange(4) < LENGTHS[:, None], labels, padding)
    found = F.cross_entropy(jagged.view(-1, 6), labels.view(-1), reduction=reduction)
    real = torch.arange(4) < LENGTHS[:, None]
    expected = F.cross_entropy(data[real], labels[real], reduction=reduction)
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found, data)
    assert gradient[~real].count_nonzero() == 0
    torch.testing.assert_close(gradient[real], torch.autograd.grad(expected, data)[0][real])


def test_logits_meet_the_tokens_that_follow() -> None:
    """Logits and labels of other lengths meet in the shorter of each pair."""
    jagged, _, data = batch()
    ids = mg.from_sequences(
        [torch.tensor([1, 2, 3]), torch.tensor([]).long(), torch.tensor([4, 5, 0, 1])], layout=torch.jagged
    )
    found = F.cross_entropy(jagged[:, :-1].reshape(-1, 6), ids[:, 1:].reshape(-1))
    logits = torch.cat([data[0, :2], data[2, :3]])
    expected = F.cross_entropy(logits, torch.tensor([2, 3, 5, 0, 1]))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("scan", [lambda x: x.cumsum(1), lambda x: x.softmax(0), lambda x: x.sort(1).values])
def test_one_position_that_is_not_there_gives_no_row(scan) -> None:
    """What comes back from the padded form has the rows of the pattern, in a frame of one position, too."""
    found = scan(mg.from_lengths(torch.ones(1, 1, 3), torch.tensor([0]), layout=torch.jagged))
    assert found.values().shape == (0, 3)
    assert not found.mask.any()
    scores = mg.from_lengths(torch.ones(1, 1, 3), torch.tensor([0]), layout=torch.jagged).transpose(1, 2)
    assert F.cross_entropy(scores, torch.tensor([[2]]), reduction="sum") == 0
