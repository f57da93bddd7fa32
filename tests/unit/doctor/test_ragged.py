"""Jagged, nested and packed batches have no padding: that is said, and the rest is examined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

import maskgrad as mg
from maskgrad.errors import ExaminationError

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
LENGTHS = (4, 1, 3, 2)
LAYER = nn.Linear(2, 1)


def _samples() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 2, generator=generator) * (place + 1) for place, n in enumerate(LENGTHS)]


def _jagged() -> Any:
    padded = torch.nn.utils.rnn.pad_sequence(_samples(), batch_first=True)
    return mg.from_lengths(padded, torch.tensor(LENGTHS), layout=torch.jagged)


BATCHES: dict[str, Callable[[], Any]] = {
    "jagged": _jagged,
    "nested": lambda: torch.nested.nested_tensor(_samples(), layout=torch.jagged),
    "nested, strided": lambda: torch.nested.nested_tensor(_samples()),
    "packed": lambda: pack_sequence(_samples(), enforce_sorted=False),
}


def _rows(held: Any) -> list[Tensor]:
    if isinstance(held, PackedSequence):
        padded, lengths = pad_packed_sequence(held, batch_first=True)
        return [row[:n] for row, n in zip(padded, lengths, strict=True)]
    if isinstance(held, mg.MaskedTensor):
        return [row[:n] for row, n in zip(held.filled(0.0), held.lengths(), strict=True)]
    return list(held.unbind())


def _means(held: Any) -> Tensor:
    return torch.stack([LAYER(row).square().mean() for row in _rows(held)])


@pytest.mark.parametrize("name", BATCHES)
def test_a_right_program_is_ok_and_its_samples_are_permuted(name: str) -> None:
    report = mg.doctor.examine(lambda b: _means(b["x"]).mean(), {"x": BATCHES[name]()}, model=LAYER)
    assert report.ok, str(report)
    (note,) = report.notes
    assert "'x': concatenated samples" in note.message
    assert "have no padding" in note.message
    names = [tried.name for tried in report.experiments]
    assert set(names) - {"padding-length"} == {"order"}
    assert ("padding-length" in names) == (name == "packed")  # which this program pads itself
    assert all("nothing" in tried.result for tried in report.experiments)


@pytest.mark.parametrize("name", BATCHES)
def test_dependence_on_the_order_of_samples_is_found(name: str) -> None:
    batch = {"x": BATCHES[name](), "y": torch.arange(4.0)}
    ordered = mg.doctor.examine(lambda b: (_means(b["x"]) * torch.arange(4)).sum() + b["y"].sum(), batch)
    assert ordered.kinds() == ["order"], str(ordered)


@pytest.mark.parametrize("name", ["jagged", "packed"])
def test_a_step_that_ignores_a_ragged_batch_is_refused(name: str) -> None:
    with pytest.raises(ExaminationError, match="does not depend on the batch"):
        mg.doctor.examine(lambda _: LAYER.weight.sum(), {"x": BATCHES[name]()})


@pytest.mark.parametrize("name", BATCHES)
def test_nothing_is_asserted_of_padding_that_is_not_there(name: str) -> None:
    with pytest.raises(ExaminationError, match="no padding was recognised"):
        mg.testing.assert_padding_invariant(lambda b: _means(b["x"]).mean(), {"x": BATCHES[name]()})


def _to_padded(held: Any) -> Tensor:
    if isinstance(held, PackedSequence):
        return pad_packed_sequence(held, batch_first=True)[0]
    if isinstance(held, list):
        return torch.nn.utils.rnn.pad_sequence(held, batch_first=True)
    return torch.nested.to_padded_tensor(held, 0.0)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("name", ["nested", "nested, strided", "packed", "list"])
def test_sequences_padded_by_the_program_are_tried_at_another_length(name: str, right: bool) -> None:
    def step(batch: Any) -> Tensor:
        hidden = _to_padded(batch["x"]).cos() - 1
        mean = hidden.sum(1) / (batch["count"] if right else hidden.size(1))  # LEAK
        return LAYER(mean).square().mean()

    batch = {
        "x": _samples() if name == "list" else BATCHES[name](),
        "count": torch.tensor(LENGTHS)[:, None] * 1.0,
    }
    report = mg.doctor.examine(step, batch, experiments=["padding-length"])
    assert "padding-length" in {tried.name for tried in report.experiments}, report
    assert report.kinds() == ([] if right else ["padding-length"]), report
    assert right or report.findings[0].code.endswith("# LEAK"), report


def test_sequences_that_the_program_pads_on_the_left_are_wider_there() -> None:
    def step(batch: Any) -> Tensor:
        padded = torch.nn.utils.rnn.pad_sequence(batch["x"], batch_first=True, padding_side="left")
        return LAYER(padded[:, -1]).square().mean()

    report = mg.doctor.examine(step, {"x": _samples()}, experiments=["padding-length"])
    assert report.ok, report
    assert report.experiments
