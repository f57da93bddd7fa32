"""What stands in the README, and so on the page of the documentation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.flights import record
from examples.flights.pictures import NAMES
from examples.flights.report import rows, spread

MODELS = {"masked": 38.5, "filled with means": 38.2, "boosted trees": 38.3}


def made_up(**rmse: float) -> dict[str, Any]:
    """Two seeds a minute apart, and a December without weather that costs two minutes."""
    runs = [
        {
            "model": model, "seed": seed, "outages": outages,
            "test": {"rmse": error + seed, "mae": 20.0}, "calibration error": 3.0,
            "December": {"rmse": 40.0}, "December without weather": {"rmse": 42.0 - 3 * outages},
        }
        for model, error in ({"mean of training": 40.0} | MODELS | rmse).items()
        for seed in ((0, 1) if model in MODELS else (0,))
        for outages in ((0.0, 0.2) if model in MODELS else (0.0,))
    ]  # fmt: skip
    return {
        "settings": {"epochs": 6, "seeds": 2, "every": 3, "outages": 0.2, "processes": 1},
        "runs": runs,
        "milliseconds per step": {"masked": 12.0, "filled with means": 10.0},
        "missing": {"gust": 0.7, "speed": 0.9, "seats": 0.4, "hour": 0.0},
        "flights": {"training": 1000, "validation": 10, "test": 100},
        "versions": {"torch": "2.13", "maskgrad": "0.2"},
    }


def test_the_readme_says_what_the_metrics_say() -> None:
    """`python -m examples.flights.record` writes it anew."""
    content = json.loads((record.FOLDER / "metrics.json").read_text(encoding="utf-8"))
    readme = (record.FOLDER / "README.md").read_text(encoding="utf-8")
    assert record.BEGIN in readme
    assert readme == record.page(readme, content)
    for name in NAMES:
        assert f"]({name})" in readme
        assert (record.FOLDER / name).exists()
    assert content["settings"]["seeds"] >= 3


def test_a_report_is_kept_with_its_pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report, folder = record.FOLDER, tmp_path
    (folder / "README.md").write_text(f"before\n{record.BEGIN}\nold\n{record.END}\nafter", encoding="utf-8")
    monkeypatch.setattr(record, "FOLDER", folder)
    record.main([str(report)])
    assert (folder / "metrics.json").read_bytes() == (report / "metrics.json").read_bytes()
    assert "old" not in (folder / "README.md").read_text(encoding="utf-8")
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in NAMES)


def test_means_and_deviations_are_over_the_seeds_of_one_training() -> None:
    content = made_up()
    found = spread(content, "masked", False, "test", "rmse")
    assert (found.mean, found.deviation) == (39.0, pytest.approx(0.5**0.5))
    assert str(found) == "39.00 ± 0.71"
    assert str(spread(content, "mean of training", False, "test", "rmse")) == "40.00"
    assert spread(content, "masked", True, "December without weather", "rmse").mean == pytest.approx(41.4)


def test_the_best_of_each_column_is_marked() -> None:
    _, lines, best = rows(made_up(), 0)
    assert [name for (name, *_), marks in zip(lines, best, strict=True) if marks[0]] == ["filled with means"]
    assert [name for (name, *_), marks in zip(lines, best, strict=True) if marks[-1]] == ["filled with means"]
    header, lines, _ = rows(made_up(), 1)
    assert header[-1] == "trained with outages: without weather"
    assert lines[0] == ["mean of training", "40.00", "42.00", "", ""]


@pytest.mark.parametrize(
    ("rmse", "said"),
    [
        (
            {},
            "**The masked network is not the best.** Its RMSE, 39.00 ± 0.71, is number 3 of 3; the best:",
        ),
        ({"masked": 30.0}, "**The masked network has the smallest error** (30.50 ± 0.71)"),
    ],
)
def test_the_words_follow_the_numbers(rmse: dict[str, float], said: str) -> None:
    text = record.page(f"before\n{record.BEGIN}\nold\n{record.END}\nafter", made_up(**rmse))
    assert said in text
    assert "old" not in text
    assert "One flight of 3: 1,000 for training, 100 for testing." in text
    assert "80% of the holes are in two of 4 columns, `speed` and `gust`" in text
    assert "masked +2.00" in text
    assert "masked +1.40" in text
    assert "1.20 times: filled with means" in text
    assert text.startswith("before\n")
    assert text.endswith("after")
