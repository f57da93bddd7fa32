"""More columns of padding: as many as add a frame, along whichever dimension, and with what stands there already."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from maskgrad import masked
from maskgrad.doctor.variants import narrowed, widened
from tests.unit.doctor.programs import recognised

LENGTHS = torch.tensor([16, 9, 12])
MASK = torch.arange(16) < LENGTHS[:, None]


def test_features_may_be_as_many_as_the_positions_of_another_tensor() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(3, 16, 4), torch.randn(3, 5, 16)
    given = {"x": MASK, "y": torch.arange(5) < torch.tensor([[5], [2], [3]])}
    made = widened({"x": x, "y": y}, recognised({"x": x, "y": y}, given), left=False)
    assert made is not None
    assert (made[0]["x"].shape, made[0]["y"].shape) == ((3, 17, 4), (3, 5, 16))


def test_other_tensors_are_extended_with_their_padding_values() -> None:
    """The longest row would otherwise get its last label twice."""
    torch.manual_seed(0)
    head = nn.Linear(4, 3)
    labels = torch.randint(0, 3, (3, 16)).masked_fill(~MASK, -1)

    def step(b: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(head(b["x"]).flatten(0, 1), b["tags"].flatten(), ignore_index=-1)

    batch = {"x": torch.randn(3, 16, 4), "tags": labels}
    assert mg.doctor.examine(step, batch, padding={"x": MASK}, experiments=["padding-length"]).ok


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

    (finding,) = mg.doctor.examine(
        step, {"x": torch.randn(3, 16, 4), "mask": mask}, experiments=["padding-length"]
    ).findings
    assert finding.kind == "padding-length"
    assert "with a sample of 10 positions alone, and without its padding" in finding.message
    assert "scaled_dot_product_attention" in finding.code


def test_a_choice_of_the_largest_is_tried_with_several_lengths() -> None:
    """Among equals another one may be chosen, at some lengths: here at whole multiples of four."""
    torch.manual_seed(0)
    head = nn.Linear(4, 1)

    def step(b: dict[str, Tensor]) -> Tensor:
        scores = head(b["x"])[..., 0].masked_fill(~b["mask"], -9.0)
        return (
            scores.topk(1 + scores.shape[1] // 20, dim=1).values.square().mean()
            + 0 * scores.topk(2).values.sum()
        )

    batch = {"x": torch.randn(3, 16, 4), "mask": MASK}
    (finding,) = mg.doctor.examine(step, batch, experiments=["padding-length"]).findings
    assert "with 4 more columns" in finding.message


def test_a_sample_alone_is_cut_to_its_own_positions() -> None:
    batch = {
        "x": torch.arange(48.0).reshape(3, 16), "who": torch.ones(3, 16, 16, dtype=torch.bool), "mask": MASK,
        "kind": torch.tensor([0, 1, 2]), "labels": masked(torch.ones(3, 16), MASK),
    }  # fmt: skip
    made = narrowed(batch, recognised(batch, {"x": "mask"}), 3, left=False)
    assert made is not None
    assert (made.columns, made.cut, made.mask.tolist()) == (12, 4, [[True] * 12])
    assert torch.equal(made.narrow["x"], batch["x"][2:, :12])  # type: ignore[index]
    assert made.narrow["who"].shape == (1, 12, 12)
    assert made.narrow["labels"].mask.all()
    assert made.wide["x"].shape == (1, 16)
    assert made.narrow["kind"].tolist() == [2]
    left = {key: batch[key].flip(1) for key in ("x", "mask")}  # type: ignore[attr-defined]
    turned = narrowed(left, recognised(left, {"x": "mask"}), 3, left=True)
    assert turned is not None
    assert torch.equal(turned.narrow["x"], left["x"][2:, 4:])
    one = recognised(batch, {"x": MASK[:1].expand(3, 16)})
    assert narrowed(batch, one, 3, left=False) is None, "no sample is shorter"


def test_a_sample_keeps_the_columns_that_any_tensor_needs() -> None:
    """Letters and sounds of a word are padded each for themselves, and here to the same width."""
    x, sounds = torch.randn(3, 16), torch.arange(16) < torch.tensor([14, 16, 13])[:, None]
    batch = {"x": x, "mask": MASK, "sounds": torch.ones(3, 16), "sounds_mask": sounds}
    made = narrowed(batch, recognised(batch, {"x": "mask", "sounds": "sounds_mask"}), 3, left=False)
    assert made is not None
    assert made.columns == 13
    del batch["sounds_mask"]
    batch["sounds"] = torch.randn(3, 16)
    assert narrowed(batch, recognised(batch, {"x": "mask"}), 3, left=False) is None, "they may be real"


def test_where_threads_forbid_a_forked_run_the_report_is_incomplete() -> None:
    x, mask = torch.randn(3, 5, 2), torch.arange(5) < torch.tensor([5, 3, 2])[:, None]
    x[~mask] = 0
    model = torch.nn.Linear(2, 1)

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if batch["x"].shape != (3, 5, 2):
            raise RuntimeError(
                "Unable to handle autograd's threading in combination with fork-based multiprocessing."
            )
        return (model(batch["x"])[..., 0] * batch["mask"]).sum() / batch["mask"].sum()

    report = mg.doctor.examine(step, {"x": x, "mask": mask}, model=model)
    assert report.verdict == "incomplete", str(report)
