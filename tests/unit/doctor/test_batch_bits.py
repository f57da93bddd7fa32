"""The experiment ``batch-bits``: where the bits of a sample's result depend on its batch (law 4)."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import maskgrad as mg

NORM = nn.BatchNorm1d(4)
MASK = torch.arange(7) < torch.tensor([7, 3, 5])[:, None]


def examined(compute, *, rows=3, time_first=False) -> mg.doctor.Report:
    torch.manual_seed(0)
    scale = nn.Parameter(torch.randn(4))  # IEEE arithmetic: the same bits on all machines
    x, mask = torch.randn(3, 7, 4).masked_fill(~MASK[..., None], 0)[:rows], MASK[:rows]
    batch = {"x": x.transpose(0, 1), "mask": mask.t()} if time_first else {"x": x, "mask": mask}

    def step(batch):
        return (compute(batch["x"] * scale) * batch["mask"][..., None]).square().sum()

    return mg.doctor.examine(step, batch, experiments="batch-bits")


@pytest.mark.parametrize(
    ("axis", "time_first", "when"),
    [(0, False, "alone"), (1, False, "without its padding"), (1, True, "alone")],
)
def test_the_first_line_whose_bits_depend_on_the_batch_is_named(axis, time_first, when):
    def compute(x):
        return x / x.shape[axis] * x.shape[axis]  # rounded twice, by another number for another batch

    (found,) = examined(compute, time_first=time_first).findings
    assert (found.kind, found.operation) == ("batch-bits", "mul")
    assert found.code.endswith("# rounded twice, by another number for another batch")
    assert when in found.message
    assert "use_kernels" in found.remedy


@pytest.mark.parametrize(
    "compute",
    [
        torch.abs,
        lambda x: x - x.mean((0, 1)),  # another result, not other bits: what `order` and others are for
        lambda x: x.flatten(0, 1).abs().view_as(x),
    ],
)
def test_nothing_is_found_where_bits_are_the_same_or_the_result_is_another_one(compute):
    report = examined(compute)

    assert report.ok, str(report)
    assert [each.result for each in report.experiments] == ["the same bits"] * 2


def test_a_loss_that_is_nearly_the_same_alone_is_no_finding():
    head, x = nn.Parameter(torch.randn(1000)), torch.rand(3, 1) * 1e-4  # log(1000) each, but for rounding
    batch = {"x": x, "labels": torch.zeros(3, dtype=torch.long)}

    def step(batch):
        return F.cross_entropy(batch["x"] * head, batch["labels"])

    report = mg.doctor.examine(step, batch, experiments="batch-bits")
    assert report.ok, str(report)
    assert "batch-bits" not in {each.name for each in mg.doctor.examine(step, batch).experiments}


@pytest.mark.parametrize(
    ("loss_of", "samples", "why"),
    [
        (lambda x, scale: (x * scale).abs().sum(), 1, "another sample"),
        (lambda x, scale: NORM(x * scale).sum(), 3, "the program fails"),
        (lambda x, scale: sum((row * scale).square().sum() for row in x), 3, "no result could be compared"),
    ],
)
def test_what_cannot_be_compared_makes_the_report_incomplete(loss_of, samples, why):
    x, scale = torch.randn(samples, 4), nn.Parameter(torch.randn(4))
    report = mg.doctor.examine(lambda b: loss_of(b["x"], scale), {"x": x}, experiments="batch-bits")
    assert report.verdict == "incomplete"
    assert why in str(report.skipped[0])


@pytest.mark.parametrize("kernels", ["invariant", None])
def test_masked_tensors_have_the_same_bits_only_if_that_is_asked_for(kernels):
    """Loops, which are chosen by size, do not run in an examination."""

    def compute(x):
        with mg.use_kernels(kernels) if kernels else contextlib.nullcontext():
            y = mg.masked(x, x != 0)
            return (y * y.mean(1, keepdim=True)).filled(0.0)

    report = examined(compute)
    assert report.verdict == ("ok" if kernels else "incomplete"), str(report)
    assert kernels or "use_kernels" in report.skipped[0].option
