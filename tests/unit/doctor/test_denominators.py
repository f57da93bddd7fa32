"""Batches in parts: one denominator has to fit in all ways to split, and nothing may fit by coincidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.errors import ExaminationError

Batch = dict[str, Tensor]
MASK = torch.arange(5) < torch.tensor([5, 1, 3, 2, 4])[:, None]


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    return {"x": torch.randn(5, 5, 3, generator=generator) * torch.arange(1, 6)[:, None, None], "mask": MASK}


def _errors(layer: nn.Linear, b: Batch) -> Tensor:
    return layer(b["x"]).squeeze(-1).square().masked_fill(~b["mask"], 0.0)


def _part(b: Batch, rows: Any) -> Batch:
    return {key: tensor[rows] for key, tensor in b.items()}


LAYER = nn.Linear(3, 1)

#: what is divided, of a part: the sum of its errors, its tokens, its samples, its padded size
RIGHT: dict[str, Callable[[Batch], Tensor]] = {
    "a sum": lambda b: _errors(LAYER, b).sum(),
    "a sum by a constant": lambda b: _errors(LAYER, b).sum() / 7,
    "a mean over samples": lambda b: _errors(LAYER, b).sum() / len(b["x"]),
    "a mean over samples of means over tokens": lambda b: (
        _errors(LAYER, b).sum(1) / b["mask"].sum(1)
    ).mean(),
}
WRONG: dict[str, Callable[[Batch], Tensor]] = {
    "a mean over tokens": lambda b: _errors(LAYER, b).sum() / b["mask"].sum(),
    "one sample less": lambda b: _errors(LAYER, b).sum() / (len(b["x"]) - 0.5),
    "the longest sample": lambda b: _errors(LAYER, b).sum() / b["mask"].sum(1).max(),
    "a root of the samples": lambda b: _errors(LAYER, b).sum() / len(b["x"]) ** 0.5,
    # the loss fits, and the gradient of one parameter does not
    "a gradient alone": lambda b: (
        _errors(LAYER, b).sum() + _of_value_zero(LAYER.bias.sum() / b["mask"].sum())
    ),
}


def _of_value_zero(x: Tensor) -> Tensor:
    return x - x.detach()


@pytest.mark.parametrize("name", RIGHT)
def test_a_sum_and_a_mean_over_samples_add_up(name: str) -> None:
    mg.testing.assert_accumulation_invariant(RIGHT[name], _batch())


@pytest.mark.parametrize("name", WRONG)
def test_other_denominators_do_not(name: str) -> None:
    with pytest.raises(AssertionError, match=r"weighted by 1 \(a sum\) or by the number of samples") as error:
        mg.testing.assert_accumulation_invariant(WRONG[name], _batch())
    assert ("real entries of 'x' they do" in str(error.value)) == (name == "a mean over tokens")


def test_a_loss_that_compares_samples_gets_the_remedy_in_two_passes() -> None:
    def contrastive(b: Batch) -> Tensor:
        x = LAYER(b["x"]).squeeze(-1).masked_fill(~b["mask"], 0.0)
        return nn.functional.cross_entropy(x @ x.T, torch.arange(len(x)))

    with pytest.raises(AssertionError, match=r"mg\.coupled_backward\(model, parts, loss\)"):
        mg.testing.assert_accumulation_invariant(contrastive, _batch())


def test_samples_that_are_all_alike_are_refused() -> None:
    alike = {"x": torch.ones(4, 5, 3), "mask": torch.ones(4, 5) > 0}
    with pytest.raises(ExaminationError, match=r"cannot be decided.*a mean of means"):
        mg.testing.assert_accumulation_invariant(RIGHT["a mean over samples"], alike)
    report = mg.doctor.examine(RIGHT["a mean over samples"], alike, experiments=["denominator"])
    assert any("cannot be decided" in note.message for note in report.notes)


def test_what_cannot_be_split_is_refused() -> None:
    one = _part(_batch(), slice(0, 1))
    with pytest.raises(ExaminationError, match="at least two samples"):
        mg.testing.assert_accumulation_invariant(RIGHT["a sum"], one)

    def noisy(b: Batch) -> Tensor:
        return _errors(LAYER, b).sum() * torch.rand(len(b["x"])).mean()

    with pytest.raises(ExaminationError, match="draws its own random numbers"):
        mg.testing.assert_accumulation_invariant(noisy, _batch())
