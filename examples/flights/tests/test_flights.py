"""The model, its inputs and its rivals, on few numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskgrad as mg
from examples.flights import rivals, training
from examples.flights.data import NUMBERS, WEATHER, Flights, join, split, without_weather
from examples.flights.model import Delays
from examples.flights.report import calibration, calibration_error

from .small_year import N, tables

HOLES = mg.masked(torch.tensor([[1.0, float("nan")], [float("inf"), 2.0]]), torch.eye(2).bool())


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
    assert parts.last_month.tolist() == [False] * 20 + [True] * 20
    # over what is specified
    column = parts.training.numbers[:, NUMBERS.index("pressure")]
    assert column.mean().item() == pytest.approx(0, abs=1e-5)
    assert column.std().item() == pytest.approx(1, abs=1e-5)


def test_a_part_without_flights_is_refused() -> None:
    frame = join(**tables())
    with pytest.raises(ValueError, match="a part has no flights"):
        split(frame[frame.month < 12].query("month != 10"))


def test_a_silent_station_takes_the_weather_and_nothing_else() -> None:
    numbers = split(join(**tables())).test.numbers
    silent = without_weather(numbers)
    weather = torch.tensor([name in WEATHER for name in NUMBERS])
    assert weather.sum() == len(WEATHER)
    assert torch.equal(silent.mask, numbers.mask & ~weather)
    assert torch.equal(silent.filled(7.0), torch.where(silent.mask, numbers.filled(0.0), 7.0))


@pytest.mark.parametrize("treat", [lambda numbers: numbers, rivals.filled_with_means])
def test_outages_concern_whole_flights(treat) -> None:
    flights = split(join(**tables())).training
    inputs = training.Inputs.of(flights, treat)
    assert inputs.with_outages(0.0) is inputs.told
    torch.manual_seed(0)
    found = inputs.with_outages(0.25)
    torch.manual_seed(0)
    out = torch.rand(len(flights), 1)[:, 0] < 0.25
    assert 20 < out.sum() < 70
    for part, expected in ((out, inputs.silent), (~out, inputs.told)):
        if isinstance(found, mg.MaskedTensor):
            assert torch.equal(found[part].mask, expected[part].mask)
            assert torch.equal(found[part].filled(7.0), expected[part].filled(7.0))
        else:
            assert torch.equal(found[part], expected[part])


def test_a_missing_number_has_no_token_and_no_gradient() -> None:
    torch.manual_seed(0)
    model = Delays(3, [2])
    codes = mg.masked(torch.tensor([[0], [1]]), torch.tensor([[True], [False]]))
    x = torch.tensor([[1.0, float("nan"), 2.0], [0.5, float("inf"), 1.0]])
    mask = torch.tensor([[True, False, True]] * 2)
    found = model(mg.masked(x, mask), codes)
    found.sum().backward()
    deleted = Delays(2, [2])
    state = {k: v[[0, 2]] if k.endswith("_FW") else v for k, v in model.state_dict().items()}
    # the sum is divided by the number of columns, and there is one less
    state["head.0.weight"] = state["head.0.weight"].clone()
    state["head.0.weight"][:, : model.weight_FW.shape[1]] *= 2 / 3
    deleted.load_state_dict(state)
    torch.testing.assert_close(found, deleted(x[:, [0, 2]], codes))
    assert not model.weight_FW.grad[1].any()
    table = model.tables[0].weight.grad.coalesce()
    assert table.to_dense()[1].count_nonzero() == 0  # of a plane that is unknown
    assert table.to_dense()[0].count_nonzero() > 0


def test_of_a_flight_of_which_nothing_is_known_something_is_said() -> None:
    model = Delays(2, [2])
    numbers = mg.masked(torch.full((1, 2), float("nan")), torch.zeros(1, 2).bool())
    found = model(numbers, mg.masked(torch.tensor([[7]]), torch.tensor([[False]])))
    torch.testing.assert_close(found, model.head(torch.zeros(1, model.head[0].in_features)))


def test_rivals_see_the_same_numbers() -> None:
    assert rivals.filled_with_means(HOLES).tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert rivals.with_indicators(HOLES).tolist() == [[1.0, 0.0, 0.0, 1.0], [0.0, 2.0, 1.0, 0.0]]


def test_the_imputer_learns_from_training_and_leaves_what_is_known() -> None:
    parts = split(join(**tables()))
    found = rivals.iterative_imputer(parts)(parts.test.numbers)
    known = parts.test.numbers.mask
    assert found.shape == known.shape
    assert found.isfinite().all()
    torch.testing.assert_close(found[known], parts.test.numbers.filled(0.0)[known])
    # what it guesses is not the mean
    guessed = found[~known & (known.any(0))]
    assert guessed.abs().max() > 0.1


def test_trees_are_grown_on_flights_that_arrived_and_see_the_outage() -> None:
    parts = split(join(**tables()))
    told, silent = rivals.boosted_trees(parts, 0, 0.0)
    assert told.shape == silent.shape == (40,)
    assert not torch.equal(told, silent)
    other, _ = rivals.boosted_trees(parts, 0, 0.5)
    assert not torch.equal(told, other)
    arrived = parts.training.delays[:, 1]
    assert torch.equal(rivals.mean_delay(parts), torch.full((40,), arrived.mean().item()))


def test_errors_and_calibration_leave_out_who_never_arrived() -> None:
    delays = mg.from_nan(torch.tensor([[0.0, 10.0], [0.0, float("nan")], [0.0, 30.0]]))
    flights = Flights(delays, delays, delays)
    found = training.errors(torch.tensor([13.0, 1e9, 26.0]), flights)
    assert (found.rmse, found.mae) == (pytest.approx(12.5**0.5), pytest.approx(3.5))
    points = calibration(torch.tensor([13.0, 1e9, 26.0]), flights)
    assert points == [(13.0, 10.0), (26.0, 30.0)]
    assert calibration_error(points) == pytest.approx(3.5)


def test_known_numbers_of_the_small_year_are_finite() -> None:
    frame = join(**tables())
    assert np.isfinite(frame["hour_sin"]).all()
    assert frame["cruising_speed"].isna().all()
