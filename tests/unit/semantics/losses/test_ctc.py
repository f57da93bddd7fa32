"""Connectionist temporal classification: time steps, labels and classes deleted, sequence by sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, nan, on

TIMES, SEQUENCES, CLASSES = 6, 3, 5
TARGETS = torch.tensor([[1, 2, 2], [3, 1, 4], [4, 4, 1]])
SIZES = torch.tensor([3, 2, 1])
LENGTHS = torch.tensor([6, 5, 4])


def log_probs() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(TIMES, SEQUENCES, CLASSES, generator=generator, dtype=torch.float64).log_softmax(-1)


def masked(mask: Tensor, garbage: float = nan) -> mg.MaskedTensor:
    mask = mask.expand(TIMES, SEQUENCES, CLASSES)
    return mg.masked(torch.where(mask, log_probs(), garbage).requires_grad_(), mask)


def alone(steps: Any, n: int, target: list[int], **options: Any) -> Tensor:
    """torch on one sequence of which some time steps are left."""
    kept = log_probs()[steps, n].unsqueeze(1)
    return F.ctc_loss(kept, torch.tensor([target]), [len(steps)], [len(target)], reduction="none", **options)[
        0
    ]


STEPS = on([1, 0, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]).unsqueeze(-1)
LEFT = [([0, 1, 2, 3, 4, 5], [1, 2, 2]), ([1, 2, 3, 4], [3, 1]), ([0], [4])]


@pytest.mark.parametrize("garbage", [nan, inf, -inf, 1e38])
def test_time_steps_are_deleted(garbage: float) -> None:
    x = masked(STEPS, garbage)
    rows = [alone(steps, n, target).item() for n, (steps, target) in enumerate(LEFT)]
    loss = F.ctc_loss(x, TARGETS, LENGTHS, SIZES, reduction="none")
    assert_entries(loss, rows)
    assert_entries(
        nn.CTCLoss()(x, TARGETS, tuple(LENGTHS.tolist()), SIZES.tolist()),
        sum(r / s for r, s in zip(rows, SIZES.tolist(), strict=True)) / 3,
    )
    grad = gradient(loss, x)
    assert not grad[~x.mask].count_nonzero()
    assert grad.isfinite().all()


def test_alignments_through_an_absent_class_do_not_count() -> None:
    mask = torch.ones(TIMES, SEQUENCES, CLASSES).bool()
    mask[2, :, 0] = False  # no blank at this time
    mask[0, 1] = on(0, 0, 1, 0, 1)  # neither a blank nor the first label
    mask[:, 2, 4] = False  # no label at all
    x = masked(mask)
    without_blank = log_probs()
    without_blank[2, 0, 0] = -1e4
    expected = F.ctc_loss(without_blank, TARGETS, LENGTHS, SIZES, reduction="none")[0].item()
    loss = F.ctc_loss(x, TARGETS, LENGTHS, SIZES, reduction="none")
    assert_entries(loss, [expected, None, None])
    grad = gradient(loss, x)
    assert grad.isfinite().all()
    assert not grad[:, 1:].count_nonzero()
    assert not grad[~mask].count_nonzero()


def test_a_sequence_of_unspecified_length_has_no_loss() -> None:
    lengths = mg.masked(torch.tensor([6, -5, 4]), on(1, 0, 1))
    whole = F.ctc_loss(log_probs(), TARGETS, LENGTHS, SIZES, reduction="none").tolist()
    assert_entries(
        F.ctc_loss(log_probs(), TARGETS, lengths, SIZES, reduction="none"), [whole[0], None, whole[2]]
    )
    sizes = mg.masked(torch.tensor([3, 2, 10**9]), on(1, 1, 0))
    assert_entries(F.ctc_loss(log_probs(), TARGETS, LENGTHS, sizes, reduction="none"), [*whole[:2], None])
    with pytest.raises(mg.UndefinedOnMaskedError, match="concatenated targets need"):
        F.ctc_loss(log_probs(), TARGETS.reshape(-1), LENGTHS, sizes)
    x = masked(torch.ones(TIMES, SEQUENCES, 1).bool())
    with pytest.raises(RuntimeError, match="input_lengths"):
        F.ctc_loss(x, TARGETS, torch.tensor([7, 5, 4]), SIZES)


def test_a_single_sequence_and_the_function_behind_the_function() -> None:
    x = masked(STEPS)
    row = alone([1, 2, 3, 4], 1, [3, 1]).item()
    assert_entries(
        F.ctc_loss(x[:, 1], TARGETS[1, :2], torch.tensor(5), torch.tensor(2), reduction="none"), row
    )
    assert_entries(F.ctc_loss(x[:, 1], TARGETS[1, :2], (5,), (2,)), row / 2)
    usual = F.ctc_loss(x, TARGETS, LENGTHS, SIZES, reduction="sum")
    assert_entries(torch.ctc_loss(x, TARGETS, LENGTHS, SIZES, 0, 2), usual.item())


def test_labels_are_deleted() -> None:
    targets = mg.masked(
        torch.tensor([[1, -9, 2], [3, 10**9, 4], [77, 4, 1]]), on([1, 0, 1], [1, 0, 0], [0, 1, 1])
    )
    rows = [alone(range(6), 0, [1, 2]).item(), alone(range(5), 1, [3]).item(), None]
    loss = F.ctc_loss(log_probs(), targets, LENGTHS, SIZES, reduction="none")
    assert_entries(loss, rows)
    assert_entries(F.ctc_loss(log_probs(), targets, LENGTHS, SIZES), (rows[0] / 2 + rows[1]) / 2)
    one_behind_the_other = mg.masked(torch.tensor([1, -9, 2, 3, 10**9, 77]), on(1, 0, 1, 1, 0, 0))
    assert_entries(F.ctc_loss(log_probs(), one_behind_the_other, LENGTHS, SIZES, reduction="none"), rows)
