"""What differs by rounding is no leak; what leaks by as little is one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import maskgrad as mg


def batch() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"x": torch.randn(64, 10, 8), "mask": torch.arange(10) < torch.randint(2, 10, (64, 1))}


def test_sums_in_another_order_are_rounding() -> None:
    layer, given = nn.Linear(8, 8), batch()
    weight = layer.weight.detach().clone()

    def step(b: dict[str, Tensor]) -> Tensor:
        order = b["x"][..., 0].flatten().argsort()  # of padding, too
        h = layer(b["x"]).masked_fill(~b["mask"][..., None], 0.0).flatten(0, 1)
        return h[order].sum(0).square().mean()

    report = mg.doctor.examine(step, given, experiments=["padding-leak"])
    assert report.ok
    assert any("is rounding" in note.message for note in report.notes)
    assert layer.weight.dtype == torch.float32
    assert torch.equal(layer.weight, weight)
    assert layer.weight.grad is None


def test_a_leak_as_small_as_rounding_stays_one() -> None:
    layer = nn.Linear(8, 8)

    def step(b: dict[str, Tensor]) -> Tensor:
        real = layer(b["x"]).masked_fill(~b["mask"][..., None], 0.0).sum(1)
        return (real + 1e-5 * b["x"].mean(1)).square().mean()

    (finding,) = mg.doctor.examine(step, batch(), quick=True).findings
    assert finding.kind == "padding-leak"
    assert 0 < finding.affected["relative"] < 1e-3
    assert "(relative difference " in finding.message


def test_a_program_that_cannot_run_in_float64_is_judged_as_it_is() -> None:
    layer = nn.Linear(8, 8)
    other = torch.ones(8, 8)  # float32 whatever the model has

    def step(b: dict[str, Tensor]) -> Tensor:
        real = layer(b["x"]).masked_fill(~b["mask"][..., None], 0.0).sum(1) @ other
        return (real + 1e-3 * b["x"].mean(1)).square().mean()

    report = mg.doctor.examine(step, batch(), quick=True)
    assert report.kinds() == ["padding-leak"]
    assert any("is more than rounding (float64 cannot be tried" in note.message for note in report.notes)


def test_another_length_that_rounds_otherwise_is_no_finding() -> None:
    """A sum that cancels to little: with another column it is taken in another order."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.ones(()))
    mask = torch.arange(64) < torch.tensor([60, 40])[:, None]
    x = torch.randn(2, 64) * 100

    def step(b: dict[str, Tensor]) -> Tensor:
        kept = torch.where(b["mask"], b["x"], 0.0)
        mean = kept.sum(1, keepdim=True) / b["mask"].sum(1, keepdim=True)
        return (torch.where(b["mask"], b["x"] - mean, 0.0) * weight).sum() + weight * 0.1

    report = mg.doctor.examine(step, {"x": x, "mask": mask}, experiments=["padding-length", "order"])
    assert report.ok, str(report)


def test_what_float32_hides_is_found_if_float64_moves_as_much() -> None:
    """Positions that are counted from the first column of a batch that is padded on the left, with little weight."""
    torch.manual_seed(0)
    layer, mask = nn.Linear(8, 8), torch.arange(10) >= torch.tensor([0, 4, 7])[:, None]

    def step(b: dict[str, Tensor]) -> Tensor:
        places = torch.arange(b["x"].shape[1], dtype=b["x"].dtype)[:, None]
        h = layer(b["x"] * (1 + 3e-5 * places)).masked_fill(~b["mask"][..., None], 0.0).sum(1)
        return (h / b["mask"].sum(1, keepdim=True)).square().mean()

    report = mg.doctor.examine(
        step, {"x": torch.randn(3, 10, 8), "mask": mask}, experiments=["padding-length"]
    )
    (finding,) = report.findings
    assert finding.kind == "padding-length"
    assert set(finding.affected["gradients"]) == {"weight"} or finding.affected["loss"] is not None
