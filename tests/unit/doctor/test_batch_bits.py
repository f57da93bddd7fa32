"""The experiment ``batch-bits``: where the bits of a sample's result depend on its batch (law 4)."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.doctor import Report

LENGTHS = torch.tensor([7, 3, 5])
MASK = torch.arange(7) < LENGTHS[:, None]


def examined(compute, *, masked=True, rows=3, time_first=False) -> Report:
    torch.manual_seed(0)
    scale = nn.Parameter(torch.randn(4))  # IEEE arithmetic: the same bits on all machines
    x, mask = torch.randn(3, 7, 4).masked_fill(~MASK[..., None], 0)[:rows], MASK[:rows]
    batch = {"x": x.transpose(0, 1) if time_first else x}
    if masked:
        batch["mask"] = mask.t() if time_first else mask

    def step(batch):
        real = batch["mask"][..., None] if masked else 1.0
        return (compute(batch["x"] * scale) * real).square().sum()

    return mg.doctor.examine(step, batch, experiments="batch-bits")


def thirds(x: Tensor) -> Tensor:
    return x / len(x) * len(x)  # rounded twice, by another number for another batch


def of_width(x: Tensor) -> Tensor:
    return x / x.shape[1] * x.shape[1]


@pytest.mark.parametrize(("compute", "when"), [(thirds, "alone"), (of_width, "without its padding")])
def test_the_first_line_whose_bits_depend_on_the_batch_is_named(compute, when):
    report = examined(compute)

    (found,) = report.findings
    assert (found.kind, found.operation) == ("batch-bits", "mul")
    assert found.code in ("return x / len(x) * len(x)  # rounded twice, by another number for another batch",
                          "return x / x.shape[1] * x.shape[1]")  # fmt: skip
    assert when in found.message
    assert "use_kernels" in found.remedy


def test_samples_along_the_second_axis_are_compared():
    by_samples = lambda x: x / x.shape[1] * x.shape[1]  # noqa: E731

    assert examined(by_samples, time_first=True).kinds() == ["batch-bits"]


@pytest.mark.parametrize(
    "compute",
    [
        torch.abs,
        lambda x: x - x.mean((0, 1)),  # another result, not other bits: what `order` and others are for
        lambda x: x.flatten(0, 1).abs().view_as(x),
    ],
)  # fmt: skip
def test_nothing_is_found_where_bits_are_the_same_or_the_result_is_another_one(compute):
    report = examined(compute)

    assert report.ok, str(report)
    assert [each.result for each in report.experiments] == ["the same bits"] * 2


def test_a_loss_that_is_nearly_the_same_alone_is_no_finding():
    head, x = (
        nn.Parameter(torch.randn(1000)),
        torch.rand(3, 1) * 1e-4,
    )  # log(1000) for each sample, but for rounding
    labels = torch.zeros(3, dtype=torch.long)
    report = mg.doctor.examine(
        lambda batch: F.cross_entropy(batch["x"] * head, batch["labels"]),
        {"x": x, "labels": labels},
        experiments="batch-bits",
    )

    assert report.ok, str(report)


def test_what_cannot_be_compared_makes_the_report_incomplete():
    alone = examined(torch.abs, masked=False, rows=1)
    assert alone.verdict == "incomplete"
    assert "another sample" in str(alone.skipped[0])

    norm = nn.BatchNorm1d(7)
    fails = examined(lambda x: norm(x.mean(2)).unsqueeze(-1), masked=False)
    assert fails.verdict == "incomplete"
    assert "the program fails" in str(fails.skipped[0])


def test_by_default_bits_are_not_compared():
    scale = nn.Parameter(torch.randn(4))
    report = mg.doctor.examine(lambda batch: thirds(batch["x"] * scale).sum(), {"x": torch.randn(3, 4)})

    assert "batch-bits" not in {each.name for each in report.experiments}


@pytest.mark.parametrize(("kernels", "verdict"), [("invariant", "ok"), (None, "incomplete")])
def test_masked_tensors_have_the_same_bits_only_if_that_is_asked_for(kernels, verdict):
    """Loops, which are chosen by size, do not run in an examination."""
    layer = nn.Linear(4, 4)
    x = torch.randn(3, 7, 4).masked_fill(~MASK[..., None], 0)

    def step(batch):
        with mg.use_kernels(kernels) if kernels else contextlib.nullcontext():
            y = mg.masked(batch["x"], batch["mask"][..., None])
            y = (layer(y).softmax(1) if kernels else y * layer.bias) * y.mean(1, keepdim=True)
            return y.square().sum()

    report = mg.doctor.examine(step, {"x": x, "mask": MASK}, experiments="batch-bits")
    assert report.verdict == verdict, str(report)
    assert kernels or "use_kernels" in report.skipped[0].option


def test_a_step_that_takes_samples_one_by_one_is_not_compared():
    scale = nn.Parameter(torch.randn(4))
    report = mg.doctor.examine(
        lambda batch: sum((row * scale).square().sum() for row in batch["x"]),
        {"x": torch.randn(3, 4)},
        experiments="batch-bits",
    )

    assert report.verdict == "incomplete", str(report)
    assert "no result could be compared" in str(report.skipped[0])
