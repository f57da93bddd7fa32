"""Documents of a packed batch: how they are recognised, and that none reaches another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.doctor.packed import documents_of
from maskgrad.errors import ExaminationError

IDS = torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9]])
NUMBERS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
BOUNDS = torch.tensor([0, 3, 8], dtype=torch.int32)
LABELS = torch.tensor([[3, 4, -100, 6, 7, 8, 9, -100]])


@pytest.mark.parametrize(
    ("batch", "given", "count"),
    [
        ({"ids": IDS, "seq_idx": NUMBERS}, None, 2),
        ({"ids": IDS, "document_ids": NUMBERS + 3}, None, 2),
        ({"ids": IDS[0], "segment_ids": NUMBERS[0] + 1}, None, 2),
        ({"ids": IDS, "position_ids": POSITIONS, "attention_mask": torch.ones(1, 8)}, None, 2),
        ({"ids": IDS, "cu_seq_lens_q": BOUNDS}, None, 2),
        ({"ids": IDS[0], "cu_seqlens": BOUNDS}, None, 2),
        ({"inputs": {"ids": IDS, "seq_idx": NUMBERS}}, None, 2),
        ({"ids": IDS, "which": NUMBERS}, "which", 2),
        ({"ids": IDS, "starts": POSITIONS}, "starts", 2),
        ({"ids": IDS, "ends": BOUNDS}, "ends", 2),
        ((IDS, LABELS), {0: NUMBERS}, 2),
        ({"ids": IDS, "seq_idx": torch.zeros_like(NUMBERS)}, None, None),  # one document
        ({"ids": IDS, "position_ids": torch.arange(8)[None]}, None, None),
        # padding on the left, where positions stand still
        ({"ids": IDS, "position_ids": POSITIONS, "attention_mask": torch.arange(8)[None] > 2}, None, None),
        ({"ids": IDS, "position_ids": torch.tensor([[1, 1, 1, 0, 1, 2, 3, 4]])}, None, None),
        ({"ids": IDS, "lengths": torch.tensor([8])}, None, None),
    ],
)
def test_documents_are_recognised(batch: Any, given: Any, count: int | None) -> None:
    found = documents_of(batch, given)
    assert getattr(found, "count", None) == count
    assert found is None or found.ids.flatten().tolist() == NUMBERS[0].tolist()


_IN_WORDS = r"documents.*(integers for one key|number the documents)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nothing", "documents: expected a key of the batch.*documents='seq_idx'"),
        ("x", "documents='x': it has neither"),
        (
            {"ids": torch.zeros(1, 3).long()},
            r"documents\['ids'\]: expected an integer for each token, of shape \(1, 8\)",
        ),
        ({}, _IN_WORDS),
        ({"ids": NUMBERS, "x": NUMBERS}, _IN_WORDS),
        ({"ids": [[0, 0, 1]]}, _IN_WORDS),
        (NUMBERS, _IN_WORDS),
    ],
)
def test_invalid_document_numbers_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ExaminationError, match=message):
        documents_of({"ids": IDS, "x": torch.ones(1, 8)}, given)


BATCH = {"ids": IDS, "seq_idx": NUMBERS, "labels": LABELS}


def test_a_leak_is_named_at_its_line() -> None:
    torch.manual_seed(0)
    embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)

    def step(b: dict[str, Tensor]) -> Tensor:
        mixed = embed(b["ids"]).cumsum(1)  # the line
        return F.cross_entropy(head(mixed).mT, b["labels"])

    report = mg.doctor.examine(step, BATCH, quick=True)
    (finding,) = report.findings
    assert (finding.kind, finding.code) == ("document-leak", 'mixed = embed(b["ids"]).cumsum(1)  # the line')
    assert "cumsum mixes other documents into document 1" in finding.message
    with pytest.raises(AssertionError, match="document-leak"):
        mg.testing.assert_documents_apart(step, BATCH)
    # documents without labels are passed over
    batch = {**BATCH, "seq_idx": torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2]]), "labels": LABELS.clone()}
    batch["labels"][:, 6:] = -100
    report = mg.doctor.examine(step, batch, experiments=["document-leak"])
    assert report.kinds() == ["document-leak"]
    assert not report.notes


def test_a_batch_whose_labels_cannot_be_ignored_is_not_examined() -> None:
    layer = nn.Linear(3, 1)
    batch = {"x": torch.randn(1, 8, 3), "seq_idx": NUMBERS, "target": torch.randn(1, 8)}
    report = mg.doctor.examine(lambda b: (layer(b["x"])[..., 0] - b["target"]).square().mean(), batch)
    assert report.verdict == "incomplete"
    assert any("no label can be ignored" in skipped.why for skipped in report.skipped)


class Model(nn.Module):
    """Walks over ids; it may return its own loss over all documents."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(12, 12), nn.GRU(12, 12, batch_first=True)

    def forward(self, ids: Tensor, seq_idx: Tensor, labels: Tensor | None = None) -> Any:
        if labels is None:
            return self.gru(self.embed(ids))[0] * (seq_idx >= 0)[..., None]  # leak
        logits = self.embed(ids) * (seq_idx >= 0)[..., None]
        return {"loss": F.cross_entropy(logits.mT, labels), "logits": logits}


def test_a_model_that_is_watched_is_called_with_other_documents_and_another_future() -> None:
    model = Model()
    with mg.doctor.watch() as watched:
        model(IDS, NUMBERS).square().mean().backward()
    assert [finding.kind for finding in watched.report.findings] == ["document-leak"]
    assert watched.report.findings[0].code.endswith("# leak")
    with mg.doctor.watch(causal=True) as watched:
        model(IDS, NUMBERS * 0).square().mean().backward()
    assert (watched.report.ok, {tried.name for tried in watched.report.experiments}) == (
        True,
        {"future-leak"},
    )
    with mg.doctor.watch(causal=True) as watched:
        model(IDS, NUMBERS, IDS)["loss"].backward()
    assert watched.report.ok, str(watched.report)
    names = {tried.name for tried in watched.report.experiments}
    assert names == {"document-leak", "document-alone", "future-leak"}


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
