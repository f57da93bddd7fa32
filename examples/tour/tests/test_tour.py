"""The tour, small: that it ends, that what it says follows from its numbers, and that its sides compute the same."""

from __future__ import annotations

import json
import math

import pytest
import torch
from typer.testing import CliRunner

from examples.tour import leak, leaking, missing, nan, table
from examples.tour.__main__ import app
from examples.tour.part import Column, Part


@pytest.mark.demo(per="elsewhere")  # each part has a test of its own
def test_a_quick_tour_writes_its_report_and_a_picture_for_each_part(tmp_path) -> None:
    threads = torch.get_num_threads()
    done = CliRunner().invoke(app, ["--quick", "--all", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "tour.json").read_text())
    assert list(written) == [
        "missing_autoencoder",
        "missing_factorisation",
        "nan",
        "lengths",
        "table",
        "leak",
    ]
    for name in set(written) - {"leak"}:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert torch.get_num_threads() == threads


@pytest.mark.demo(per="elsewhere")  # the parts of the long way have tests of their own
def test_one_screen_is_measured_and_says_what_is_right(tmp_path) -> None:
    done = CliRunner().invoke(app, ["--quick", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert len(lines) <= 36
    assert [line[0] for line in lines if line[0].isdigit() and line[1] == "."] == list("123456")
    found = {line[5:63].strip(): line[63:].strip() for line in lines if line.startswith("     ")}
    assert found["F.mse_loss(model(x), y)"] == "nan"
    assert found["F.mse_loss(model(x), mg.from_nan(y))"] == found["the missing ones deleted by hand"]
    assert float(found["mg.GradientAccumulator(model)"]) < 1e-5
    assert found["(F.cross_entropy(model(x), y) / 4).backward()"].endswith("%")
    doctor = next(i for i, line in enumerate(lines) if line.startswith("6. maskgrad doctor"))
    assert "note_ids" in " ".join(lines[doctor:])  # the inventory
    assert any("padding-leak at train.py:15" in line for line in lines[doctor:])
    assert (tmp_path / "everyday.png").read_bytes().startswith(b"\x89PNG")


def test_masked_and_hand_masked_targets_have_the_same_gradient_and_filled_ones_do_not() -> None:
    torch.manual_seed(0)
    target, base = torch.randn(6, 5).double(), torch.randn(6, 5).double()
    target[torch.rand_like(target) < 0.5] = math.nan
    gradients = {}
    for name, loss in missing.LOSSES.items():
        output = torch.ones_like(base, requires_grad=True)
        given = missing.mg.masked(target, ~target.isnan()) if name == "masked" else target
        gradients[name] = torch.autograd.grad(loss(output, given, base), output)[0]
    torch.testing.assert_close(gradients["masked"], gradients["hand-masked"])
    for name in ("mean-imputed", "zero-filled"):
        assert not torch.allclose(gradients["masked"], gradients[name])


def test_the_naive_loss_is_finite_where_its_gradient_is_not() -> None:
    rows = nan.measure(steps=5).rows
    ours, naive, by_hand = rows.values()
    assert naive["first loss"] == pytest.approx(ours["first loss"])
    assert (math.isnan(naive["first gradient norm"]), naive["steps until NaN"]) == (True, 1)
    assert by_hand == pytest.approx(ours, rel=1e-3)
    assert math.isfinite(ours["last loss"])


@pytest.mark.filterwarnings(
    "error:.*before their pending updates"
)  # an exact table that is read too early is not exact
def test_the_exact_optimizer_is_where_the_dense_one_is() -> None:
    rows = table.measure(steps=6, rows=3000).rows
    assert rows[table.FIRST]["off dense AdamW by"] < 1e-4
    assert rows["maskgrad AdamW, lazy"]["off dense AdamW by"] > 1e-4


def test_the_doctor_finds_the_line_and_nothing_in_the_mended_script() -> None:
    part = leak.measure()
    assert "padding-leak at `pooled = hidden.mean(1)`" in part.finding
    assert [row["findings"] for row in part.rows.values()] == [1, 0]
    batch = leaking.batch_of()
    assert leak.fixed(batch).item() != pytest.approx(leaking.step(batch).item(), rel=1e-6)


def test_a_cell_marks_the_best_and_says_the_difference_from_the_first_row() -> None:
    part = Part(
        "x", "x", {"ms": Column("{:.0f}", min, compared=True)}, {"a": {"ms": 4}, "b": {"ms": 2}, "c": {}}
    )
    cells = [part._cell(row, "ms") for row in part.rows.values()]
    assert cells == ["4", "[bold green]2[/] [dim](-50%)[/]", ""]
