"""Draws wire_model.png: what ``benchmarks/wire.py`` measured beside the model, and what the model says of 1,000 ranks.

Run it from the root: ``PYTHONPATH=. python docs/pictures/wire_model.py``; benchmarks/wire.py measured wire_model.csv.
"""

from __future__ import annotations

import csv
from pathlib import Path

from matplotlib.ticker import NullLocator

from benchmarks.charts.scaling import scaling
from benchmarks.wire_model import (
    Cost,
    Network,
    Table,
    dense_all_reduce,
    distinct_rows,
    sharded_step,
    sparse_all_gather,
)
from maskgrad.plot.canvas import COLORS, INK, TICK_SIZE, dress, figure

HERE = Path(__file__).parent
RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
DRAWS, EXPONENT = 100_000, 1.0
BANDWIDTH, LATENCY = 3.125e9, 2e-5  # 25 Gbit/s
WAYS = ("dense", "sparse", "sharded block", "sharded cyclic")
NAMES = {
    "dense": "replicas, dense all-reduce",
    "sparse": "replicas, sparse exchange",
    "sharded block": 'sharded, "block"',
    "sharded cyclic": 'sharded, "cyclic"',
}


def cost(way: str, network: Network, table: Table, draws: int, exponent: float) -> Cost:
    """What the model says of one way."""
    if way == "dense":
        return dense_all_reduce(network, table)
    if way == "sparse":
        return sparse_all_gather(network, table, distinct_rows(table.rows, draws, exponent))
    placement = "block" if way.endswith("block") else "cyclic"
    return sharded_step(network, table, draws, exponent, placement)


def measured() -> list[dict[str, str]]:
    with (HERE / "wire_model.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def draw() -> None:
    colors = dict(zip((NAMES[way] for way in WAYS), COLORS, strict=False))
    picture = figure(13, 5.2)
    left, right = picture.subplots(1, 2, width_ratios=(1, 1.25))
    ends = [1e-3, 1.0]
    left.plot(ends, ends, color=INK, linewidth=0.9)
    for way, mark in zip(WAYS, "os^D", strict=True):
        rows = [row for row in measured() if row["way"] == way and row["mbits"] == "100"]
        predicted = [
            cost(
                way,
                Network(int(row["ranks"]), 1e6 * int(row["mbits"]) / 8),
                Table(int(row["rows"]), int(row["width"])),
                int(row["draws"] or 0),
                float(row["exponent"] or 0),
            )
            for row in rows
        ]
        seconds = [c.bytes / (1e6 * int(row["mbits"]) / 8) for c, row in zip(predicted, rows, strict=True)]
        color = colors[NAMES[way]]
        left.plot(
            seconds,
            [float(row["seconds"]) for row in rows],
            mark,
            color=color,
            label=NAMES[way],
            markersize=6,
            alpha=0.8,
        )
    left.set_xscale("log")
    left.set_yscale("log")
    left.grid(color="#dddddd", linewidth=0.8)
    left.set_axisbelow(True)
    dress(
        left,
        "2, 4, 8 ranks at 100 Mbit/s",
        "bytes of the model / bandwidth (s)",
        "measured time of a step (s)",
    )
    table = Table(10**9, 64)
    series = {}
    for way in WAYS:
        networks = [Network(ranks, BANDWIDTH, LATENCY) for ranks in RANKS]
        times = [cost(way, network, table, DRAWS, EXPONENT).seconds(network) for network in networks]
        series[NAMES[way]] = (list(RANKS), times)
    scaling(
        series, right, colors=colors, legend=False, xlabel="ranks", ylabel="time on the wire per step (s)"
    )
    dress(right, "Predicted: 10⁹ rows of 64 floats, 25 Gbit/s", None, None)
    right.set_xticks([2, 8, 32, 128, 1000], ["2", "8", "32", "128", "1,000"])
    right.xaxis.set_minor_locator(NullLocator())
    handles, labels = right.get_legend_handles_labels()
    picture.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=4,
        fontsize=TICK_SIZE,
        frameon=False,
        labelcolor=INK,
    )
    picture.savefig(HERE / "wire_model.png")


if __name__ == "__main__":
    draw()
