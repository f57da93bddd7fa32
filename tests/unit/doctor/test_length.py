"""More columns of padding: as many as add a frame, along whichever dimension, and with what stands there already."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.doctor.padding import Padding
from maskgrad.doctor.variants import pads_left

MASK = torch.arange(16) < torch.tensor([16, 9, 12])[:, None]


def examined(step, batch, **options) -> mg.doctor.Report:
    return mg.doctor.examine(step, batch, experiments=["padding-length"], **options)


def test_a_decoder_is_widened_for_itself_and_labels_with_what_is_ignored() -> None:
    """Its sequences have another length than those of the encoder, and lie in the same batch."""
    torch.manual_seed(0)
    embed, head, tagger = nn.Embedding(9, 4), nn.Linear(4, 9), nn.Linear(4, 3)
    real = torch.arange(5) < torch.tensor([5, 2, 3])[:, None]
    batch = {
        "x": torch.randn(3, 16, 4),
        "mask": MASK,
        "labels": torch.randint(1, 9, (3, 5)).masked_fill(~real, -100),
        "tags": torch.randint(0, 3, (3, 16)).masked_fill(~MASK, -1),
    }

    def step(b: dict[str, Tensor], size: int | None = None) -> Tensor:
        context = (b["x"] * b["mask"][..., None]).sum(1) / b["mask"].sum(1, keepdim=True)
        decoded = embed(b["labels"].clamp(min=0)) * (b["labels"] != -100)[..., None]
        decoded = decoded.sum(1) / (size or decoded.size(1)) + context
        tagged = F.cross_entropy(tagger(b["x"]).flatten(0, 1), b["tags"].flatten(), ignore_index=-1)
        return F.cross_entropy(head(decoded), b["labels"][:, 0]) + tagged

    (finding,) = examined(step, batch).findings
    assert finding.code.startswith("decoded = decoded.sum(1) / (size or")
    assert examined(lambda b: step(b, 5), batch).ok


def test_labels_of_a_decoder_are_widened_at_their_own_end_where_the_encoder_pads_on_the_left() -> None:
    """As M2M100 does: the decoder reads the labels, shifted, without a mask, and none before its first."""
    torch.manual_seed(0)
    embed, decoder, head = nn.Embedding(9, 4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 9)
    ids = torch.randint(1, 9, (3, 16)).masked_fill(~MASK.flip(1), 0)
    labels = torch.randint(1, 9, (3, 5)).masked_fill(
        torch.arange(5) >= torch.tensor([5, 2, 3])[:, None], -100
    )

    def step(b: dict[str, Tensor]) -> Tensor:
        mask = b["mask"][..., None]
        context = (embed(b["ids"]) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        shifted = F.pad(b["labels"], (1, -1), value=0).clamp(min=0)
        decoded, _ = decoder(embed(shifted) + context)
        return F.cross_entropy(head(decoded).flatten(0, 1), b["labels"].flatten())

    assert examined(step, {"ids": ids, "mask": MASK.flip(1), "labels": labels}).ok


def test_padding_on_the_left_is_told_by_the_masks_with_as_many_columns() -> None:
    """Also where the first mask is one for all channels."""
    channels, rows = Padding("x", MASK.flip(1)[:, None], "given"), Padding("ids", MASK.flip(1), "given")
    labels = Padding("labels", MASK[:, :5] & (torch.arange(5) < 3), "labels of -100")
    assert pads_left([channels, rows, labels])
    assert not pads_left([labels, channels, rows])


def test_dropout_that_is_drawn_in_cpp_is_left_out() -> None:
    torch.manual_seed(0)
    project, recurrent = nn.Linear(4, 4), nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True)

    def step(b: dict[str, Tensor]) -> Tensor:
        h, _ = recurrent(project(b["x"]))
        h = F.scaled_dot_product_attention(h, h, h, b["mask"][:, None, :], dropout_p=0.5)
        h = h.masked_fill(~b["mask"][..., None], 0.0)
        return (h.sum(1) / b["mask"].sum(1, keepdim=True)).square().mean()

    report = examined(step, {"x": torch.randn(3, 16, 4), "mask": MASK})
    assert report.ok, str(report)
    assert {tried.name for tried in report.experiments} == {"padding-length"}


@pytest.mark.parametrize("lengths", [(16, 9, 10), (10, 16, 9)])
def test_a_program_that_asks_whether_there_is_padding_is_found(lengths: tuple[int, ...]) -> None:
    """Attention without a mask is quicker; here the one without is not causal any more."""
    torch.manual_seed(0)
    head = nn.Linear(4, 4)
    mask = torch.arange(16) < torch.tensor(lengths)[:, None]

    def step(b: dict[str, Tensor]) -> Tensor:
        real, h = b["mask"], head(b["x"])
        causal = None if real.all() else torch.ones(real.shape[1], real.shape[1], dtype=torch.bool).tril()
        seen = causal if causal is None else (causal & real[:, None]) | ~real[:, :, None]
        h = F.scaled_dot_product_attention(h, h, h, seen)
        return (h * real[..., None]).sum((1, 2)).div(real.sum(1)).square().mean()

    (finding,) = examined(step, {"x": torch.randn(3, 16, 4), "mask": mask}).findings
    assert finding.kind == "padding-length"
    assert "with a sample of 10 positions alone, and without its padding" in finding.message
    assert "scaled_dot_product_attention" in finding.code


def test_a_choice_of_the_largest_is_tried_with_several_lengths() -> None:
    """Among equals another one may be chosen, at some lengths: here at whole multiples of four."""
    torch.manual_seed(0)
    head = nn.Linear(4, 1)

    def step(b: dict[str, Tensor]) -> Tensor:
        scores = head(b["x"])[..., 0].masked_fill(~b["mask"], -9.0)
        chosen = scores.topk(1 + scores.shape[1] // 20, dim=1).values
        return chosen.square().mean() + 0 * scores.topk(2).values.sum()

    (finding,) = examined(step, {"x": torch.randn(3, 16, 4), "mask": MASK}).findings
    assert "with 4 more columns" in finding.message


def test_where_threads_forbid_a_forked_run_the_report_is_incomplete() -> None:
    model, x = nn.Linear(2, 1), torch.randn(3, 16, 2) * MASK[..., None]

    def step(batch: dict[str, Tensor]) -> Tensor:
        if batch["x"].shape != (3, 16, 2):
            raise RuntimeError(
                "Unable to handle autograd's threading in combination with fork-based multiprocessing."
            )
        return (model(batch["x"])[..., 0] * batch["mask"]).sum() / batch["mask"].sum()

    report = mg.doctor.examine(step, {"x": x, "mask": MASK}, model=model)
    assert report.verdict == "incomplete", str(report)
