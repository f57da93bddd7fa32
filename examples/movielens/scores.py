"""How far predictions are from the stars that were given."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Scores", "score"]

#: nobody can give less or more
FEWEST, MOST = 0.5, 5.0


@dataclass(frozen=True)
class Scores:
    """Two averages of the error, in stars."""

    rmse: float
    mae: float


def score(predicted: Tensor, stars: Tensor) -> Scores:
    """Compare (N,) predictions, limited to the stars that exist, with the (N,) stars given."""
    errors = predicted.clamp(FEWEST, MOST) - stars
    return Scores(rmse=errors.square().mean().sqrt().item(), mae=errors.abs().mean().item())
