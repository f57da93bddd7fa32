"""Draws four_ranks.png: a model trained with the mean of the means of four ranks, and with one mean over all tokens.

Run it from anywhere: ``python docs/pictures/four_ranks.py``. Four ranks have eight sequences each; in short sequences
the answer is another one than in long ones.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from maskgrad.plot.canvas import COLORS, TICK_SIZE, dress, figure

STEPS, RANKS, ROWS, TOKENS = 120, 4, 8, 48


def batches() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and masks of the ranks; two of the ranks have short sequences."""
    draw = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 5, (RANKS, ROWS), generator=draw)
    lengths[:2] = torch.randint(36, TOKENS, (2, ROWS), generator=draw)
    mask = torch.arange(TOKENS) < lengths[..., None]
    x = torch.randn(RANKS, ROWS, TOKENS, 6, generator=draw)
    y = x.sum(-1) + torch.where(lengths < 5, 2.0, 0.0)[..., None] * x[..., 0]
    return x, y + 0.3 * torch.randn(y.shape, generator=draw), mask


def trained(counts_all: bool) -> list[float]:
    """The mean loss of all tokens after each step; gradients are averages over the ranks."""
    torch.manual_seed(0)
    model, (x, y, mask) = nn.Linear(6, 1), batches()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    seen = []
    for _ in range(STEPS):
        losses = (model(x).squeeze(-1) - y).square() * mask
        seen.append((losses.sum() / mask.sum()).item())
        own = losses.sum((1, 2)) / mask.sum((1, 2))
        optimizer.zero_grad()
        (losses.sum() / mask.sum() if counts_all else own.mean()).backward()
        optimizer.step()
    return seen


def main() -> None:
    """Train both, and write the picture next to this file."""
    usual, right = trained(False), trained(True)
    picture = figure(9, 4.4)
    ax = picture.subplots()
    ax.plot(right, color=COLORS[0], linewidth=2.2, label="one rank, or four that count the tokens of all")
    ax.plot(
        usual,
        color=COLORS[1],
        linewidth=2.2,
        linestyle="--",
        label="four ranks, each with the mean of its own tokens",
    )
    ax.set_ylim(0, usual[0])
    ax.legend(frameon=False, fontsize=TICK_SIZE)
    worse = f"{usual[-1] / right[-1]:.1f}"
    title = f"A mean of means over four ranks ends with {worse} times the loss"
    dress(ax, title, "step", "mean loss of all tokens")
    picture.savefig(Path(__file__).with_name("four_ranks.png"), dpi=150)


if __name__ == "__main__":
    main()
