"""Curves of values per epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from maskgrad.plot.canvas import COLORS, DASHES, INK, TICK_SIZE, axes_to_draw_into, dress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["curves"]


def curves(
    series: Mapping[str, Sequence[float]],
    ax: Axes | None = None,
    *,
    title: str | None = None,
    xlabel: str | None = "epoch",
    ylabel: str | None = None,
    level: tuple[str, float] | None = None,
    legend: bool = True,
) -> Axes:
    """Draw one curve for each series, over 1, 2, 3, ...

    Args:
        series: name and values of each curve; colour and dashes both tell them apart.
        ax: axes to draw into; new ones if None.
        title: title above the plot.
        xlabel: label of the x axis.
        ylabel: label of the y axis, with the unit.
        level: name and height of a horizontal line to compare with.
        legend: whether to add a legend; False if neighbouring axes have it.

    Returns:
        The axes.

    Raises:
        MissingDependencyError: matplotlib is not installed.

    Example:
        >>> import maskgrad as mg
        >>> from matplotlib.figure import Figure
        >>> ax = mg.plot.curves({"training": [2., 1.], "held out": [2., 1.5]}, Figure().subplots())
        >>> len(ax.lines)
        2
    """
    ax = axes_to_draw_into(ax)
    from matplotlib.ticker import MaxNLocator

    for number, (name, values) in enumerate(series.items()):
        style: dict[str, Any] = {
            "color": COLORS[number % len(COLORS)],
            "linestyle": DASHES[number % len(DASHES)],
        }
        marker = "o" if len(values) == 1 else None  # a single point is not visible as a line
        ax.plot(range(1, len(values) + 1), values, label=name, linewidth=2.2, marker=marker, **style)
    if level is not None:
        ax.axhline(level[1], label=level[0], color=INK, linewidth=1)
    ax.set_xlim(0.5, max([1, *map(len, series.values())]) + 0.5)  # there is no epoch 0
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(axis="y", color="#dddddd", linewidth=0.8)
    ax.set_axisbelow(True)
    if legend and ax.get_legend_handles_labels()[1]:
        ax.legend(fontsize=TICK_SIZE, frameon=False, labelcolor=INK, handlelength=2.6)
    dress(ax, title, xlabel, ylabel)
    return ax
