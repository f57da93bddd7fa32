"""A made-up year, and the program on it: ``torchrun -m examples.flights.tests.small_year``."""

from __future__ import annotations

import numpy as np
import pandas as pd

from examples.flights import run, training
from examples.flights.__main__ import app

N, BATCH = 240, 64


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


if __name__ == "__main__":
    run.load_tables = tables
    training.BATCH = BATCH
    app()
