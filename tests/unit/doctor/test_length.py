"""More columns of padding: as many as add a frame, along whichever dimension, and with what stands there already."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.doctor.batches import recognised
from maskgrad.doctor.variants import widened

LENGTHS = torch.tensor([16, 9, 12])
MASK = torch.arange(16) < LENGTHS[:, None]


def test_a_model_that_takes_four_samples_for_a_frame() -> None:
    torch.manual_seed(0)
    conv = nn.Conv1d(1, 8, 4, stride=4)

    def step(b: dict[str, Tensor]) -> Tensor:
        frames = conv(b["x"].masked_fill(~b["mask"], 0.0)[:, None])
        return frames.mean(2).square().mean()  # of all frames, however many

    batch = {"x": torch.randn(3, 16), "mask": MASK}
    report = mg.doctor.examine(step, batch, experiments=["padding-length"])
    (finding,) = report.findings
    assert finding.code.startswith("return frames.mean(2)")
    assert "with 4 more columns of padding on the right" in finding.message
    assert [tried.changed for tried in report.experiments] == [
        "with one more column of padding on the right",
        "with 2 more columns of padding on the right",
        "with 4 more columns of padding on the right",
    ]


def test_a_mask_for_all_channels_widens_the_positions() -> None:
    torch.manual_seed(0)
    head = nn.Linear(5, 1)

    def step(b: dict[str, Tensor]) -> Tensor:
        h = head(b["x"].masked_fill(~b["mask"], 0.0).mT)  # (B, T, 1)
        return (h * b["mask"].mT).sum((1, 2)).div(b["mask"].sum((1, 2))).square().mean()

    batch = {"x": torch.randn(3, 5, 16), "mask": MASK[:, None]}
    report = mg.doctor.examine(step, batch, padding={"x": "mask"}, experiments=["padding-length"])
    assert report.ok, str(report)
    assert report.experiments


def test_other_tensors_have_what_they_have_at_padding() -> None:
    """The longest row would otherwise get its last label twice."""
    torch.manual_seed(0)
    head = nn.Linear(4, 3)
    labels = torch.randint(0, 3, (3, 16)).masked_fill(~MASK, -1)

    def step(b: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(head(b["x"]).flatten(0, 1), b["tags"].flatten(), ignore_index=-1)

    batch = {"x": torch.randn(3, 16, 4), "tags": labels}
    assert mg.doctor.examine(step, batch, padding={"x": MASK}, experiments=["padding-length"]).ok


def test_positions_are_widened_where_there_are_as_many_channels() -> None:
    batch = {"x": torch.randn(3, 16, 16), "mask": MASK[:, None]}
    made = widened(batch, recognised(batch, {"x": "mask"}), left=False, count=2)
    assert made is not None
    assert made[0]["x"].shape == (3, 16, 18)
    assert made[0]["mask"].shape == (3, 1, 18)


def test_images_are_widened_with_their_mask() -> None:
    real = (torch.arange(6) < LENGTHS[:, None] // 3)[:, None].expand(3, 6, 6)
    batch = {"pixel_values": torch.randn(3, 2, 6, 6), "pixel_mask": real.clone()}
    made = widened(batch, recognised(batch, None), left=False)
    assert made is not None
    assert made[0]["pixel_values"].shape == (3, 2, 7, 6)
    assert made[0]["pixel_mask"].shape == (3, 7, 6)


def test_a_decoder_is_widened_for_itself() -> None:
    """Its sequences have another length than those of the encoder, and lie in the same batch."""
    torch.manual_seed(0)
    embed, head = nn.Embedding(9, 4), nn.Linear(4, 9)
    labels = torch.randint(1, 9, (3, 5)).masked_fill(
        torch.arange(5) >= torch.tensor([5, 2, 3])[:, None], -100
    )
    batch = {"x": torch.randn(3, 16, 4), "mask": MASK, "labels": labels}

    def step(b: dict[str, Tensor], size: int | None = None) -> Tensor:
        context = (b["x"] * b["mask"][..., None]).sum(1) / b["mask"].sum(1, keepdim=True)
        decoded = embed(b["labels"].clamp(min=0)) * (b["labels"] != -100)[..., None]
        decoded = decoded.sum(1) / (size or decoded.size(1)) + context
        return F.cross_entropy(head(decoded), b["labels"][:, 0])

    report = mg.doctor.examine(step, batch, experiments=["padding-length"])
    (finding,) = report.findings
    assert finding.code.startswith("decoded = decoded.sum(1) / (size or")
    assert mg.doctor.examine(lambda b: step(b, 5), batch, experiments=["padding-length"]).ok


@pytest.mark.parametrize("layer", ["attention", "lstm"])
def test_dropout_that_is_drawn_in_cpp_is_left_out(layer: str) -> None:
    torch.manual_seed(0)
    project, recurrent = nn.Linear(4, 4), nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True)

    def step(b: dict[str, Tensor]) -> Tensor:
        h = project(b["x"])
        if layer == "lstm":
            h, _ = recurrent(h)
        else:
            h = F.scaled_dot_product_attention(h, h, h, b["mask"][:, None, :], dropout_p=0.5)
        h = h.masked_fill(~b["mask"][..., None], 0.0)
        return (h.sum(1) / b["mask"].sum(1, keepdim=True)).square().mean()

    report = mg.doctor.examine(
        step, {"x": torch.randn(3, 16, 4), "mask": MASK}, experiments=["padding-length"]
    )
    assert report.ok, str(report)
    assert [tried.name for tried in report.experiments] == ["padding-length"]
