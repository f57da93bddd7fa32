"""Axes to draw into, and the common style of all plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskgrad.optional_packages import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLORS", "DASHES", "INK", "axes_to_draw_into", "dress", "figure"]

#: Okabe and Ito's palette, less its yellow (too faint on white): distinguishable for colour-blind readers and in print
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
INK = "#333333"
TITLE_SIZE, LABEL_SIZE, TICK_SIZE = 14, 12, 11


def figure(width: float, height: float) -> Figure:
    """A figure for a file: no window, and no change to the user's matplotlib (inches; 150 dots each)."""
    require("matplotlib", "maskgrad.plot")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")


def axes_to_draw_into(ax: Axes | None) -> Axes:
    """``ax``, or the axes of a new figure of pyplot, which notebooks display."""
    require("matplotlib", "maskgrad.plot")
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]


def dress(ax: Axes, title: str | None, xlabel: str | None, ylabel: str | None, *, pad: float = 12) -> None:
    """Set title, labels and readable font sizes."""
    if title is not None:
        ax.set_title(title, fontsize=TITLE_SIZE, loc="left", pad=pad, color=INK)
    if xlabel is not None:
        ax.set_xlabel(xlabel, fontsize=LABEL_SIZE, color=INK)
    if ylabel is not None:
        ax.set_ylabel(ylabel, fontsize=LABEL_SIZE, color=INK)
    ax.tick_params(labelsize=TICK_SIZE, color=INK, labelcolor=INK)
    ax.spines[["top", "right"]].set_visible(False)
