"""NaN where a target is missing: a loss that hides it from the sum does not hide it from the gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from torch import Tensor, nn

import maskgrad as mg

from .part import Column, Part

__all__ = ["LOSSES", "measure"]

COLUMNS = {
    "first loss": Column("{:.3f}"),
    "last loss": Column("{:.3f}", min),
    "first gradient norm": Column("{:.3f}"),
    "steps until NaN": Column("{:.0f}"),
}


def naive(output: Tensor, target: Tensor) -> Tensor:
    known = ~target.isnan()
    return torch.where(known, (output - target).square(), 0.0).sum() / known.sum()


def masked(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, mg.masked(target, ~target.isnan()))


def filled_first(output: Tensor, target: Tensor) -> Tensor:
    known = ~target.isnan()
    return torch.where(known, (output - target.nan_to_num()).square(), 0.0).sum() / known.sum()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "masked": masked,
    "naive: torch.where(known, error, 0)": naive,
    "by hand: NaN replaced before the error": filled_first,
}


def measure(seed: int = 0, steps: int = 100) -> Part:
    """The same network on the same batches with each loss; a third of the targets is NaN."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for name, loss in LOSSES.items():
        torch.manual_seed(seed)
        truth, model = torch.randn(8, 4), nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        curves[name] = []
        for _ in range(steps):
            x = torch.randn(64, 8)
            target = (x @ truth).tanh()
            target[torch.rand_like(target) < 1 / 3] = float("nan")
            optimizer.zero_grad()
            found = loss(model(x), target)
            found.backward()
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
            optimizer.step()
            curves[name].append((found.item(), norm.item()))
    rows = {name: _row(curve) for name, curve in curves.items()}
    ours, theirs = (rows[name] for name in list(LOSSES)[:2])
    finding = (
        f"NaN under the mask: the naive loss is {theirs['first loss']:.2f} at first, its gradient "
        f"{theirs['first gradient norm']:.2f}; masked, it falls to {ours['last loss']:.2f}"
    )

    def draw(ax: Axes) -> None:
        for number, which in enumerate(("loss", "gradient norm")):
            series = {
                f"{name.partition(':')[0]}, {which}": [pair[number] for pair in curve]
                for name, curve in list(curves.items())[:2]
                if math.isfinite(curve[0][number])
            }
            for (name, values), style in zip(series.items(), ("-", "o"), strict=False):
                ax.plot(range(1, steps + 1), values, style, label=name, markersize=4)
        ax.set(yscale="log", xlabel="step")
        ax.legend(frameon=False)

    return Part("nan", finding, COLUMNS, rows, draw)


def _row(curve: list[tuple[float, float]]) -> dict[str, float]:
    broken = [number for number, pair in enumerate(curve, 1) if not all(map(math.isfinite, pair))]
    row = {"first loss": curve[0][0], "last loss": curve[-1][0], "first gradient norm": curve[0][1]}
    return row | ({"steps until NaN": broken[0]} if broken else {})
