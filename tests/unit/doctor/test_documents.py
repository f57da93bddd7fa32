"""Documents of a packed batch: how they are recognised, and that none reaches another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.doctor.packed import alone, content, documents_of, with_labels
from maskgrad.errors import ExaminationError

IDS = torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9]])
NUMBERS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
BOUNDS = torch.tensor([0, 3, 8], dtype=torch.int32)
LABELS = torch.tensor([[3, 4, -100, 6, 7, 8, 9, -100]])


@pytest.mark.parametrize(
    ("batch", "given"),
    [
        ({"ids": IDS, "seq_idx": NUMBERS}, None),
        ({"ids": IDS, "document_ids": NUMBERS + 3}, None),
        ({"ids": IDS[0], "segment_ids": NUMBERS[0] + 1}, None),
        ({"ids": IDS, "position_ids": POSITIONS}, None),
        ({"ids": IDS, "position_ids": POSITIONS, "attention_mask": torch.ones(1, 8)}, None),
        ({"ids": IDS, "cu_seq_lens_q": BOUNDS}, None),
        ({"ids": IDS[0], "cu_seqlens": BOUNDS}, None),
        ({"inputs": {"ids": IDS, "seq_idx": NUMBERS}}, None),
        ({"ids": IDS, "which": NUMBERS}, "which"),
        ({"ids": IDS, "starts": POSITIONS}, "starts"),
        ({"ids": IDS, "ends": BOUNDS}, "ends"),
        ((IDS, LABELS), {0: NUMBERS}),
    ],
)
def test_documents_are_recognised(batch: Any, given: Any) -> None:
    found = documents_of(batch, given)
    assert found is not None
    assert found.ids.flatten().tolist() == NUMBERS[0].tolist()
    assert found.count == 2


@pytest.mark.parametrize(
    "batch",
    [
        {"ids": IDS, "seq_idx": torch.zeros_like(NUMBERS)},  # one document
        {"ids": IDS, "position_ids": torch.arange(8)[None]},
        # padding on the left, where positions stand still
        {"ids": IDS, "position_ids": POSITIONS, "attention_mask": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])},
        {"ids": IDS, "position_ids": torch.tensor([[1, 1, 1, 0, 1, 2, 3, 4]])},
        {"ids": IDS, "lengths": torch.tensor([8])},
    ],
)
def test_none_are_recognised(batch: Any) -> None:
    assert documents_of(batch) is None


def test_rows_hold_documents_of_their_own_and_zeros_at_the_end_are_none() -> None:
    found = documents_of(
        {"ids": IDS.expand(2, 8), "segment_ids": torch.tensor([[1] * 3 + [2] * 5, [1] * 4 + [0] * 4])}
    )
    assert found is not None
    first, second = found.ids.tolist()
    assert first == [0, 0, 0, 1, 1, 1, 1, 1]
    assert second == [2, 2, 2, 2, -1, -1, -1, -1]
    assert found.count == 3


def test_labels_of_others_are_ignored_and_a_document_is_cut_out() -> None:
    batch = {
        "ids": IDS,
        "position_ids": POSITIONS,
        "labels": LABELS,
        "weight": torch.ones(1, 8),
        "max_length_q": 5,
    }
    found = documents_of(batch)
    assert found is not None
    assert list(content(batch, found)) == ["ids"]
    counting = with_labels(batch, found, lambda ids: ids == 0)
    assert counting["labels"].tolist() == [[3, 4] + [-100] * 6]
    assert counting["weight"].tolist() == [[1.0] * 3 + [0.0] * 5]
    single = alone(counting, found, 0)
    assert single["ids"].tolist() == [[2, 3, 4]]
    assert single["position_ids"].tolist() == [[0, 1, 2]]
    assert single["max_length_q"] == 3
    by_document = {"ids": IDS[0], "cu_seqlens": BOUNDS, "label": torch.tensor([1, 0])}
    found = documents_of(by_document)
    assert found is not None
    counting = with_labels(by_document, found, lambda ids: ids == 1)
    assert counting["label"].tolist() == [-100, 0]
    single = alone(counting, found, 1)
    assert (single["ids"].tolist(), single["cu_seqlens"].tolist(), single["label"].tolist()) == (
        [5, 6, 7, 8, 9],
        [0, 5],
        [0],
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nothing", "documents: expected a key of the batch.*documents='seq_idx'"),
        ("x", "documents='x': it has neither"),
        (
            {"ids": torch.zeros(1, 3).long()},
            r"documents\['ids'\]: expected an integer for each token, of shape \(1, 8\)",
        ),
    ],
)
def test_invalid_document_numbers_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ExaminationError, match=message):
        documents_of({"ids": IDS, "x": torch.ones(1, 8)}, given)


def step_with(mix: Callable[[Tensor, Tensor], Tensor]) -> Callable[[dict[str, Tensor]], Tensor]:
    torch.manual_seed(0)
    embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)

    def step(b: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(head(mix(embed(b["ids"]), b["seq_idx"])).transpose(1, 2), b["labels"])

    return step


BATCH = {"ids": IDS, "seq_idx": NUMBERS, "labels": LABELS}


def test_a_leak_is_named_at_its_line() -> None:
    def mix(h: Tensor, _: Tensor) -> Tensor:
        return h.cumsum(1)  # the line

    report = mg.doctor.examine(step_with(mix), BATCH, quick=True)
    (finding,) = report.findings
    assert (finding.kind, finding.code) == ("document-leak", "return h.cumsum(1)  # the line")
    assert "cumsum mixes other documents into document 1" in finding.message
    with pytest.raises(AssertionError, match="document-leak"):
        mg.testing.assert_documents_apart(step_with(mix), BATCH)


def test_a_batch_whose_labels_cannot_be_ignored_is_not_examined() -> None:
    layer = nn.Linear(3, 1)
    batch = {"x": torch.randn(1, 8, 3), "seq_idx": NUMBERS, "target": torch.randn(1, 8)}
    report = mg.doctor.examine(lambda b: (layer(b["x"])[..., 0] - b["target"]).square().mean(), batch)
    assert report.verdict == "incomplete"
    assert any("no label can be ignored" in skipped.why for skipped in report.skipped)


def test_a_model_that_is_watched_is_called_with_other_documents() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.gru = nn.Embedding(12, 6), nn.GRU(6, 6, batch_first=True)

        def forward(self, ids: Tensor, seq_idx: Tensor) -> Tensor:
            return self.gru(self.embed(ids))[0] * (seq_idx >= 0)[..., None]

    model = Model()
    with mg.doctor.watch() as watched:
        model(IDS, NUMBERS).square().mean().backward()
    assert watched.report.kinds() == ["document-leak"]
    assert watched.report.findings[0].code.startswith("return self.gru(self.embed(ids))")
    before = model.embed.weight.grad
    assert before is not None
    with mg.doctor.watch(causal=True) as watched:
        model(IDS, NUMBERS * 0).square().mean().backward()
    assert watched.report.ok
    assert {tried.name for tried in watched.report.experiments} == {"future-leak"}


def test_the_future_is_asked_for_by_name() -> None:
    def step(b: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(head(embed(b["ids"]) + embed(b["ids"]).mean(1, keepdim=True)).mT, b["labels"])

    embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
    batch = {"ids": IDS.expand(2, 8), "labels": LABELS.expand(2, 8)}
    assert mg.doctor.examine(step, batch, experiments=["order"]).ok
    for asked in ({"causal": True}, {"experiments": ["future-leak"]}):
        assert "future-leak" in mg.doctor.examine(step, batch, **asked).kinds()
    with pytest.raises(AssertionError, match="later positions"):
        mg.testing.assert_causal(step, batch)


@pytest.mark.parametrize("given", [{}, {"ids": NUMBERS, "labels": NUMBERS}, {"ids": [[0, 0, 1]]}, NUMBERS])
def test_other_ways_to_give_documents_are_refused_in_words(given: Any) -> None:
    with pytest.raises(ExaminationError, match=r"documents.*(integers for one key|number the documents)"):
        documents_of({"ids": IDS, "labels": LABELS}, given)


def test_documents_without_labels_are_passed_over() -> None:
    def mix(h: Tensor, _: Tensor) -> Tensor:
        return h.cumsum(1)

    batch = {"ids": IDS, "seq_idx": torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2]]), "labels": LABELS.clone()}
    batch["labels"][:, 6:] = -100
    report = mg.doctor.examine(step_with(mix), batch, experiments=["document-leak"])
    assert report.kinds() == ["document-leak"]
    assert not report.notes


def test_a_model_that_returns_its_own_loss_over_all_documents_is_right() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(12, 6), nn.Linear(6, 12)

        def forward(self, ids: Tensor, seq_idx: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.head(self.embed(ids)) * (seq_idx >= 0)[..., None]
            return {"loss": F.cross_entropy(logits.mT, labels), "logits": logits}

    with mg.doctor.watch(causal=True) as watched:
        Model()(IDS, NUMBERS, IDS)["loss"].backward()
    assert watched.report.ok, str(watched.report)
    names = {tried.name for tried in watched.report.experiments}
    assert names == {"document-leak", "document-alone", "future-leak"}
