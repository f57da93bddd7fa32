"""Draws batched_jacobian.png: all derivatives of a batch, and the few that are not zero if samples are independent.

Run it from anywhere: ``python docs/pictures/batched_jacobian.py``. The numbers are those of two small networks.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.plot.canvas import INK, LABEL_SIZE, TICK_SIZE, TITLE_SIZE, figure

SAMPLES, FEATURES, OUTPUTS = 5, 4, 3
LARGEST = 0.5


def whole(model: nn.Module, x: Tensor) -> Tensor:
    """The derivative of every output of every sample by every input of every sample."""
    jacobian = torch.autograd.functional.jacobian(model, x.detach())
    return jacobian.reshape(SAMPLES * OUTPUTS, SAMPLES * FEATURES)


def draw(ax: Axes, numbers: Tensor, title: str) -> None:
    """One matrix, with a line between samples."""
    ax.imshow(numbers.detach().numpy(), cmap="RdBu_r", vmin=-LARGEST, vmax=LARGEST, aspect="equal")
    ax.set_title(title, fontsize=TITLE_SIZE, color=INK, loc="left")
    ax.set_xticks([])
    ax.set_yticks([])
    for number in range(1, SAMPLES):
        ax.axhline(number * OUTPUTS - 0.5, color="#bbbbbb", linewidth=0.8)
        if numbers.shape[1] > FEATURES:
            ax.axvline(number * FEATURES - 0.5, color="#bbbbbb", linewidth=0.8)
    ax.set_yticks(
        [(n + 0.5) * OUTPUTS - 0.5 for n in range(SAMPLES)], [f"sample {n}" for n in range(SAMPLES)]
    )
    if numbers.shape[1] > FEATURES:
        ax.set_xticks([(n + 0.5) * FEATURES - 0.5 for n in range(SAMPLES)], [f"{n}" for n in range(SAMPLES)])
        ax.set_xlabel("by the inputs of sample", fontsize=LABEL_SIZE, color=INK)
    else:
        ax.set_xlabel("by its\nown inputs", fontsize=LABEL_SIZE, color=INK)
    ax.tick_params(length=0, labelsize=TICK_SIZE, colors=INK)
    ax.spines[:].set_color("#bbbbbb")


def main() -> None:
    """Differentiate the two networks and write the picture next to this file."""
    torch.manual_seed(3)
    x = torch.randn(SAMPLES, FEATURES, requires_grad=True)
    plain = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, OUTPUTS))
    normed = nn.Sequential(plain[0], nn.BatchNorm1d(8), nn.Tanh(), plain[2])

    picture = figure(12, 4)
    left, middle, right = picture.subplots(1, 3, width_ratios=(20, 4, 20))
    draw(left, whole(plain, x), "outputs, samples independent")
    packed = mg.batched_grad(plain(x), x)
    draw(middle, packed.reshape(SAMPLES * OUTPUTS, FEATURES), "batched_grad")
    draw(right, whole(normed, x), "with BatchNorm in training mode")
    picture.savefig(Path(__file__).with_name("batched_jacobian.png"))


if __name__ == "__main__":
    main()
