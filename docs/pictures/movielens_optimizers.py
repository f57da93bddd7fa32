"""Trains MovieLens with every optimizer; writes movielens_optimizers.csv and .png, and the table in ../optimizers.md.

Run it from the root, on an idle machine: ``PYTHONPATH=. python docs/pictures/movielens_optimizers.py`` (some minutes).

One model for all: a matrix factorization with 64 factors and biases, the mean squared error of 1,000 ratings a step.
Learning rate and epoch are chosen by the validation ratings, the score is that of the held-out ones. The times of a
step (forward, backward, optimizer) are taken in turns, so that whatever else the machine does meets all.
"""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator
from rich.progress import track
from torch import Tensor, nn

import maskgrad as mg
from examples.movielens.data import load
from examples.movielens.ratings import Ratings, Split, split
from examples.movielens.scores import score
from maskgrad.plot.canvas import COLORS, INK, TICK_SIZE, dress, figure

HERE = Path(__file__).parent
FACTORS, BATCH, EPOCHS, TIMED = 64, 1000, 12, 40
#: the learning rates that are tried, and further options
OPTIMIZERS: dict[str, tuple[tuple[float, ...], dict[str, Any]]] = {
    "SGD": ((10.0, 30.0, 100.0), {"momentum": 0.9}),
    "Adagrad": ((0.03, 0.1, 0.3), {}),
    "Adam": ((0.001, 0.003, 0.01), {}),
    "AdamW": ((0.001, 0.003, 0.01), {"weight_decay": 0.1}),
    "RMSprop": ((0.001, 0.003, 0.01), {}),
    "Adadelta": ((1.0, 3.0, 10.0), {}),
    "Adamax": ((0.003, 0.01, 0.03), {}),
    "NAdam": ((0.001, 0.003, 0.01), {}),
    "RAdam": ((0.001, 0.003, 0.01), {}),
    "Rprop": ((0.0003, 0.001, 0.003), {}),
    "ASGD": ((30.0, 100.0, 300.0), {}),
    "Lion": ((0.0003, 0.001, 0.003), {}),
}
HEADINGS = (
    '| optimizer | RMSE `"skip"` | RMSE `"zero"` | step `"skip"` | step `"zero"` '
    "| torch, dense gradients | torch, sparse gradients |"
)
LABELS = {"skip": '"skip"', "zero": '"zero"', "dense": "torch, dense", "sparse": "torch, sparse"}
COLUMNS = ("optimizer", "rmse_skip", "rmse_zero", "ms_skip", "ms_zero", "ms_stock_dense", "ms_stock_sparse")


class Model(nn.Module):
    """Mean, biases, and the product of factors."""

    def __init__(self, training: Ratings, sparse: bool) -> None:
        super().__init__()
        sizes = [(n, width) for width in (FACTORS, 1) for n in (training.num_users, training.num_movies)]
        self.tables = nn.ModuleList(mg.nn.Embedding(n, width, sparse=sparse) for n, width in sizes)
        self.mean = float(training.stars.mean())
        for table, std in zip(self.tables, (0.05, 0.05, 0.0, 0.0), strict=True):
            nn.init.normal_(table.weight, std=std)

    def forward(self, users: Tensor, movies: Tensor) -> Tensor:
        """Stars for (B,) pairs."""
        p, q, b, c = (table(i) for table, i in zip(self.tables, (users, movies) * 2, strict=True))
        return self.mean + (p * q).sum(1) + (b + c).squeeze(1)


def batches(training: Ratings) -> Iterator[Ratings]:
    for index in torch.randperm(len(training)).split(BATCH):
        yield training[index]


def step(model: Model, optimizer: torch.optim.Optimizer, batch: Ratings) -> None:
    loss = F.mse_loss(model(batch.users, batch.movies), batch.stars)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.no_grad()
def rmse(model: Model, part: Ratings) -> float:
    return score(model(part.users, part.movies), part.stars).rmse


def trained(name: str, lr: float, meaning: str, parts: Split) -> tuple[float, float]:
    """RMSE on the validation and the held-out ratings, at the best epoch of the former."""
    torch.manual_seed(0)
    model = Model(parts.training, sparse=True)
    options = OPTIMIZERS[name][1]
    optimizer = getattr(mg.optim, name)(model.parameters(), lr=lr, unspecified=meaning, **options)
    best = (float("inf"), float("inf"))
    for _ in range(EPOCHS):
        for batch in batches(parts.training):
            step(model, optimizer, batch)
        optimizer.flush()
        best = min(best, (rmse(model, parts.validation), rmse(model, parts.held_out)))
    return best


def milliseconds(name: str, training: Ratings) -> dict[str, float | None]:
    """Medians of whole steps, by contestant; None where PyTorch refuses sparse gradients."""
    lr, options = OPTIMIZERS[name][0][0], OPTIMIZERS[name][1]
    ours: Callable[..., Any] = getattr(mg.optim, name)
    stock = getattr(torch.optim, name, None)
    stock_sparse = torch.optim.SparseAdam if name == "Adam" else stock if name in ("SGD", "Adagrad") else None
    contestants: dict[str, Any] = {
        "ms_skip": lambda p: ours(p, lr=lr, unspecified="skip", **options),
        "ms_zero": lambda p: ours(p, lr=lr, unspecified="zero", **options),
        "ms_stock_dense": stock and (lambda p: stock(p, lr=lr, **options)),
        "ms_stock_sparse": stock_sparse and (lambda p: stock_sparse(p, lr=lr, **options)),
    }
    racing = {}
    for key, make in contestants.items():
        if make is not None:
            model = Model(training, sparse=key != "ms_stock_dense")
            racing[key] = (model, make(list(model.parameters())))
    times: dict[str, list[float]] = {key: [] for key in racing}
    for number, batch in enumerate(batches(training)):
        if number == TIMED:
            break
        for key, (model, optimizer) in racing.items():
            start = time.perf_counter()
            step(model, optimizer, batch)
            times[key].append(time.perf_counter() - start)
    return {key: 1e3 * statistics.median(times[key][5:]) if key in times else None for key in contestants}


def measure() -> list[dict[str, Any]]:
    parts = split(load(), seed=0)
    rows = []
    for name, (rates, _) in track(OPTIMIZERS.items(), "optimizers"):
        row: dict[str, Any] = {"optimizer": name}
        for meaning in ("skip", "zero"):
            row[f"rmse_{meaning}"] = min(trained(name, lr, meaning, parts) for lr in rates)[1]
        rows.append(row | milliseconds(name, parts.training))
    return rows


def write_table(rows: list[dict[str, Any]]) -> None:
    """Between the two marks in ../optimizers.md."""
    lines = [
        HEADINGS,
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        cells = [f"{row[key]:.4f}" for key in COLUMNS[1:3]]
        absent = "refused" if row["ms_stock_dense"] else "–"
        cells += [f"{row[key]:.1f} ms" if row[key] else absent for key in COLUMNS[3:]]
        lines.append(f"| {row['optimizer']} | {' | '.join(cells)} |")
    page = HERE.parent / "optimizers.md"
    before, rest = page.read_text().split("<!-- movielens: written by pictures/movielens_optimizers.py -->\n")
    after = rest.split("<!-- end of movielens -->\n")[1]
    page.write_text(
        before + "<!-- movielens: written by pictures/movielens_optimizers.py -->\n\n" + "\n".join(lines)
        + "\n\n<!-- end of movielens -->\n" + after
    )  # fmt: skip


def draw(rows: list[dict[str, Any]]) -> None:
    picture = figure(10, 5.4)
    left, right = picture.subplots(1, 2, sharey=True)
    names = [row["optimizer"] for row in rows][::-1]
    for ax, columns in ((left, COLUMNS[1:3]), (right, COLUMNS[3:])):
        for color, column in zip(COLORS, columns, strict=False):
            values = [row[column] or float("nan") for row in rows][::-1]
            label = LABELS[column.rsplit("_", 1)[1]]
            ax.plot(values, names, "o", color=color, label=label, markersize=7, alpha=0.85)
        ax.grid(axis="y", color="#eeeeee")
        ax.set_axisbelow(True)
        ax.legend(fontsize=TICK_SIZE, frameon=False, labelcolor=INK)
    right.set_xscale("log")
    right.xaxis.set_major_locator(FixedLocator([0.5, 1, 2, 4, 8]))
    right.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    right.xaxis.set_minor_locator(NullLocator())
    dress(left, "Error on held-out ratings", "RMSE in stars", None)
    dress(right, "Time of a training step", "milliseconds", None)
    picture.savefig(HERE / "movielens_optimizers.png")


def main() -> None:
    """Measure, and write the three files."""
    rows = measure()
    with (HERE / "movielens_optimizers.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    write_table(rows)
    draw(rows)


if __name__ == "__main__":
    main()
