"""What differs as little as by rounding is no finding, and not right either: in float64 it is one of both."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import maskgrad as mg


def batch() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"x": torch.randn(64, 10, 8), "mask": torch.arange(10) < torch.randint(2, 10, (64, 1))}


def test_sums_in_another_order_may_be_rounding() -> None:
    layer, given = nn.Linear(8, 8), batch()

    def step(b: dict[str, Tensor]) -> Tensor:
        order = b["x"][..., 0].flatten().argsort()  # of padding, too
        h = layer(b["x"]).masked_fill(~b["mask"][..., None], 0.0).flatten(0, 1)
        return h[order].sum(0).square().mean()

    report = mg.doctor.examine(step, given, experiments=["padding-leak"])
    assert (report.verdict, report.findings) == ("incomplete", [])
    assert "may be rounding; add model.double()" in " ".join(report.unexamined)
    layer.double()
    assert mg.doctor.examine(step, {**given, "x": given["x"].double()}, experiments=["padding-leak"]).ok


def test_a_leak_as_small_as_rounding_grows_with_the_garbage() -> None:
    layer = nn.Linear(8, 8)

    def step(b: dict[str, Tensor]) -> Tensor:
        real = layer(b["x"]).masked_fill(~b["mask"][..., None], 0.0).sum(1)
        return (real + 1e-5 * b["x"].mean(1)).square().mean()

    (finding,) = mg.doctor.examine(step, batch(), quick=True).findings
    assert "values ten thousand times as large" in finding.message


def test_a_leak_below_float32_precision_is_found_in_float64() -> None:
    """Positions that are counted from the first column of a batch that is padded on the left, with little weight."""
    torch.manual_seed(0)
    layer, mask = nn.Linear(8, 8), torch.arange(10) >= torch.tensor([0, 4, 7])[:, None]

    def step(b: dict[str, Tensor]) -> Tensor:
        places = torch.arange(b["x"].shape[1], dtype=b["x"].dtype)[:, None]
        h = layer(b["x"] * (1 + 3e-5 * places)).masked_fill(~b["mask"][..., None], 0.0).sum(1)
        return (h / b["mask"].sum(1, keepdim=True)).square().mean()

    x = torch.randn(3, 10, 8)
    report = mg.doctor.examine(step, {"x": x, "mask": mask}, experiments=["padding-length"])
    assert (report.verdict, report.findings) == ("incomplete", [])
    layer.double()
    report = mg.doctor.examine(step, {"x": x.double(), "mask": mask}, experiments=["padding-length"])
    assert report.kinds() == ["padding-length"]
