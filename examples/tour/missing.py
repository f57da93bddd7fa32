"""Ratings with holes: the same network, input, seed and seconds; only what stands for a missing target differs.

Shapes: B movies in a batch, M movies, U users.
"""

from __future__ import annotations

import copy
import inspect
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from examples.movielens import data
from examples.movielens.autoencoder import ItemAutoencoder
from examples.movielens.bars import bars
from examples.movielens.baseline import BiasBaseline
from examples.movielens.factorization import Factorization
from examples.movielens.ratings import Ratings, Split, split
from examples.movielens.scores import score

from .part import Column, Part

__all__ = ["LOSSES", "measure", "ratings_of", "trained"]

BATCH = 256
#: steps before the clock starts, on every side
WARM = 2
COLUMNS = {
    "RMSE (stars)": Column("{:.4f}", min),
    "ms per step": Column("{:.1f}", min, compared=True),
    "steps": Column("{:,.0f}"),
    "lines of the loss": Column("{:.0f}", min),
}

# What the network should say is stars minus those that the biases of user and movie predict, `base`. Each loss is
# what one would write; `target` has NaN where there is no rating.


def masked(output: Tensor, target: mg.MaskedTensor, _base: Tensor) -> Tensor:
    return F.mse_loss(output, target)


def hand_masked(output: Tensor, target: Tensor, _base: Tensor) -> Tensor:
    rated = ~target.isnan()
    error = (output - target.nan_to_num()).square()
    return (error * rated).sum() / rated.sum()


def mean_imputed(output: Tensor, target: Tensor, _base: Tensor) -> Tensor:
    filled = target.nan_to_num(0.0)  # no difference from the biases
    return F.mse_loss(output, filled)


def zero_filled(output: Tensor, target: Tensor, base: Tensor) -> Tensor:
    filled = torch.where(target.isnan(), -base, target)  # no stars
    return F.mse_loss(output, filled)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "masked": masked,
    "hand-masked": hand_masked,
    "mean-imputed": mean_imputed,
    "zero-filled": zero_filled,
}


class Autoencoder(ItemAutoencoder):
    """Reads half of the ratings of a movie; the input has zeros where there is none, on every side."""

    def block(self, _movies: Tensor, known: Tensor) -> Tensor:
        output: Tensor = self(F.dropout(known, 0.5, self.training))
        return output


class Factors(Factorization):
    """Its movies' tables get sparse gradients, its users' dense ones."""

    def block(self, movies: Tensor, _known: Tensor) -> Tensor:
        match = self.movie_factors(movies) @ self.user_factors.weight.T
        output: Tensor = match + self.movie_bias(movies) + self.user_bias.weight.T
        return output


def ratings_of(seed: int, movies: int | None = None) -> Split:
    """The ratings, or those of the first movies, in three parts."""
    ratings = data.load()
    if movies is not None:
        few = ratings.movies < movies
        ratings = Ratings(
            ratings.users[few], ratings.movies[few], ratings.stars[few], ratings.num_users, movies
        )
    return split(ratings, seed)


def trained(parts: Split, loss: str, seed: int, seconds: float) -> dict[str, float]:
    """The autoencoder, trained with one of the losses by PyTorch's Adam."""
    torch.manual_seed(seed)
    model = Autoencoder(parts.training.num_users)
    return _train(model, torch.optim.Adam(model.parameters(), lr=2e-3), loss, parts, seconds)


def measure(seed: int = 0, seconds: float = 4.0, movies: int | None = None) -> Iterator[Part]:
    """Both networks, each for ``seconds`` with every loss and optimizer."""
    parts = ratings_of(seed, movies)
    ratings = parts.training
    networks: dict[str, tuple[Callable[[], nn.Module], str, float]] = {
        "autoencoder": (lambda: Autoencoder(ratings.num_users), "Adam", 2e-3),
        "factorisation": (
            lambda: Factors(ratings.num_users, ratings.num_movies, torch.zeros(()), factors=32),
            "Adagrad",
            0.05,
        ),
    }
    for name, (make, optimizer, rate) in networks.items():
        rows = {}
        for loss, home in (
            ("masked", mg.optim), ("masked", torch.optim), ("hand-masked", torch.optim),
            ("mean-imputed", torch.optim), ("zero-filled", torch.optim),
        ):  # fmt: skip
            torch.manual_seed(seed)
            model = make()
            stepper = getattr(home, optimizer)(model.parameters(), lr=rate)
            who = "maskgrad" if home is mg.optim else "torch"
            rows[f"{loss}, {who} {optimizer}"] = _train(model, stepper, loss, parts, seconds)
        yield _part(name, rows, seconds)


def _part(name: str, rows: dict[str, dict[str, float]], seconds: float) -> Part:
    errors = {row: found["RMSE (stars)"] for row, found in rows.items()}
    ours = next(iter(errors.values()))
    gap = min(errors[row] for row in errors if "masked" not in row) - ours
    found = f"{abs(gap):.3f} stars {'better' if gap > 0 else 'worse'} than the best filling"
    lengths = {row: {"RMSE": error} for row, error in errors.items()}
    return Part(
        f"missing_{name}",
        f"MovieLens {name}, {seconds:g} s each: masked is {found}",
        COLUMNS,
        rows,
        lambda ax: bars(lengths, ax, number_format="{:.4f}", xlabel="RMSE on held-out ratings (stars)"),
    )


def _train(
    model: Any, optimizer: torch.optim.Optimizer, name: str, parts: Split, seconds: float
) -> dict[str, float]:
    """Steps for ``seconds``; the epoch with the best validation RMSE is kept. Scoring takes none of the time."""
    training, loss = parts.training, LOSSES[name]
    baseline = BiasBaseline.fit(training)
    users, movies = torch.arange(training.num_users), torch.arange(training.num_movies)
    base_MU = baseline.predict(users.repeat(len(movies)), movies.repeat_interleave(len(users))).view(
        len(movies), len(users)
    )
    target_MU = training.matrix(training.stars - base_MU[training.movies, training.users])
    known_MU = target_MU.filled(0.0)
    targets: Any = target_MU if name == "masked" else target_MU.filled(float("nan"))
    rated = torch.unique(training.movies)
    spent, times, warm, best = 0.0, [], WARM, (float("inf"), float("nan"))
    while spent < seconds:
        for index in rated[torch.randperm(len(rated))].split(BATCH):
            start = time.perf_counter()
            found = loss(model.block(index, known_MU[index]), targets[index], base_MU[index])
            optimizer.zero_grad()
            found.backward()
            optimizer.step()
            if warm:  # these compile what there is to compile
                warm -= 1
                continue
            times.append(time.perf_counter() - start)
            spent += times[-1]
            if spent >= seconds:
                break
        best = min(best, _scored(model, known_MU, base_MU, parts))
    code = [line for line in inspect.getsource(loss).splitlines() if line.strip()]
    return dict(
        zip(COLUMNS, (best[1], 1e3 * statistics.median(times), len(times), len(code) - 1), strict=True)
    )


@torch.no_grad()
def _scored(model: Any, known_MU: Tensor, base_MU: Tensor, parts: Split) -> tuple[float, float]:
    """RMSE on the validation and on the held-out ratings."""
    still = copy.copy(model).eval()
    predicted = base_MU + still.block(torch.arange(len(known_MU)), known_MU)
    model.train()
    watched, held_out = (
        score(predicted[part.movies, part.users], part.stars).rmse
        for part in (parts.validation, parts.held_out)
    )
    return watched, held_out
