"""Draws convolution_rules.png: what a convolution specifies of a padded sequence, and around a hole.

Run it from anywhere: ``python docs/pictures/convolution_rules.py``. The numbers come from the convolutions themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

import maskgrad as mg
from maskgrad.plot.canvas import COLORS, INK, TICK_SIZE, dress, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 10
RULES = ("any", "center", "all")


def panel(ax: Axes, mask: torch.Tensor, taps: int, title: str) -> None:
    """The input, and the result of a window of ones by each rule."""
    x = mg.masked(torch.arange(1.0, WIDTH + 1), mask)
    ones = torch.ones(1, 1, taps)
    results = [
        mg.nn.functional.conv1d(x[None, None], ones, padding=taps // 2, specified=rule)[0, 0]
        for rule in RULES
    ]
    for line, row in enumerate((x, *results)):
        for place, number in enumerate(row.tolist()):
            there = number is not None
            color = "#dddddd" if line == 0 else COLORS[line - 1]
            ax.barh(
                line, 0.94, 0.8, place - 0.47,
                color=color if there else "white", alpha=0.55, edgecolor="#bbbbbb", linewidth=0.8,
            )  # fmt: skip
            text = f"{number:g}" if there else "–"
            ax.text(place, line, text, ha="center", va="center", color=INK, fontsize=TICK_SIZE)
    ax.set_yticks(range(4), ["input", *(f'"{rule}"' for rule in RULES)])
    ax.set_xticks([])
    ax.set_xlim(-0.5, WIDTH - 0.5)
    ax.invert_yaxis()
    dress(ax, title, None, None, pad=8)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def main() -> None:
    """Draw both and write the picture next to this file."""
    place = torch.arange(WIDTH)
    picture = figure(9, 5.4)
    above, below = picture.subplots(2)
    panel(
        above, place < 4, 5, 'A padded sequence of 4 keeps its length with "center" (window of 5, padding 2)'
    )
    title = 'A hole of 2 closes with "any", stays with "center", grows with "all" (window of 3)'
    panel(below, (place != 4) & (place != 5), 3, title)
    picture.savefig(Path(__file__).with_name("convolution_rules.png"))


if __name__ == "__main__":
    main()
