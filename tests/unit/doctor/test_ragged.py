"""Jagged, nested and packed batches have no padding: that is said, and the rest is examined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
    unpack_sequence,
)

import maskgrad as mg
from maskgrad.errors import ExaminationError

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
LENGTHS = torch.tensor([4, 1, 3, 2])
LAYER = nn.Linear(2, 1)


def _samples() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 2, generator=generator) * (place + 1) for place, n in enumerate(LENGTHS.tolist())]


BATCHES: dict[str, Callable[[], Any]] = {
    "jagged": lambda: mg.from_lengths(pad_sequence(_samples(), True), LENGTHS, layout=torch.jagged),
    "nested": lambda: torch.nested.nested_tensor(_samples(), layout=torch.jagged),
    "nested, strided": lambda: torch.nested.nested_tensor(_samples()),
    "packed": lambda: pack_sequence(_samples(), enforce_sorted=False),
}


def _means(held: Any) -> Tensor:
    rows = unpack_sequence(held) if isinstance(held, PackedSequence) else held
    if isinstance(held, mg.MaskedTensor):
        rows = [row[:n] for row, n in zip(held.filled(0.0), held.lengths(), strict=True)]
    return torch.stack([LAYER(row).square().mean() for row in rows])


@pytest.mark.parametrize("name", BATCHES)
def test_samples_are_permuted_and_there_is_no_padding(name: str) -> None:
    batch = {"x": BATCHES[name](), "y": torch.arange(4.0)}
    wrong = mg.doctor.examine(lambda b: (_means(b["x"]) * torch.arange(4)).sum() + b["y"].sum(), batch)
    assert wrong.kinds() == ["order"], str(wrong)
    report = mg.doctor.examine(lambda b: _means(b["x"]).mean(), {"x": batch["x"]}, model=LAYER)
    assert report.ok, str(report)
    (note,) = report.notes
    assert "'x': concatenated samples" in note.message
    assert "have no padding" in note.message
    with pytest.raises(ExaminationError, match="no padding was recognised"):
        mg.testing.assert_padding_invariant(lambda b: _means(b["x"]).mean(), {"x": batch["x"]})
    if name in ("jagged", "packed"):
        with pytest.raises(ExaminationError, match="does not depend on the batch"):
            mg.doctor.examine(lambda _: LAYER.weight.sum(), {"x": batch["x"]})


def _padded(held: Any) -> Tensor:
    if isinstance(held, PackedSequence):
        return pad_packed_sequence(held, batch_first=True)[0]
    return pad_sequence(held, True) if isinstance(held, list) else torch.nested.to_padded_tensor(held, 0.0)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("name", ["nested", "nested, strided", "packed", "list"])
def test_sequences_padded_by_the_program_are_tried_at_another_length(name: str, right: bool) -> None:
    def step(batch: Any) -> Tensor:
        hidden = _padded(batch["x"]).cos() - 1
        mean = hidden.sum(1) / (batch["count"] if right else hidden.size(1))  # LEAK
        return LAYER(mean).square().mean()

    batch = {"x": BATCHES.get(name, _samples)(), "count": LENGTHS[:, None] * 1.0}
    report = mg.doctor.examine(step, batch, experiments=["padding-length"])
    assert "padding-length" in {tried.name for tried in report.experiments}, report
    assert report.kinds() == ([] if right else ["padding-length"]), report
    assert right or report.findings[0].code.endswith("# LEAK"), report


def test_sequences_that_the_program_pads_on_the_left_are_wider_there() -> None:
    def step(batch: Any) -> Tensor:
        padded = pad_sequence(batch["x"], batch_first=True, padding_side="left")
        return LAYER(padded[:, -1]).square().mean()

    report = mg.doctor.examine(step, {"x": _samples()}, experiments=["padding-length"])
    assert report.ok, report
    assert report.experiments


def test_where_the_program_pads_the_first_line_that_differs_is_named() -> None:
    def step(batch: Any) -> Tensor:
        padded = pad_sequence(batch["x"], batch_first=True)
        weights = LAYER(padded).softmax(1)  # LEAK
        mask = torch.arange(padded.shape[1]) < LENGTHS[:, None]
        return (weights * padded)[mask].square().mean()

    report = mg.doctor.examine(step, {"x": _samples()}, experiments=["padding-length"])
    assert report.findings[0].code.endswith("# LEAK"), report
