"""Many things compared in one number each, as dots on a line for each thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from benchmarks.charts.scaling import MARKERS, style_number
from maskgrad.plot.canvas import COLORS, INK, TICK_SIZE, axes_to_draw_into, dress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["dots"]


def dots(
    groups: Mapping[str, Mapping[str, float]],
    ax: Axes | None = None,
    *,
    level: tuple[str, float] | None = None,
    log: bool = False,
    colors: Mapping[str, str] | None = None,
    title: str | None = None,
    xlabel: str | None = None,
) -> Axes:
    """Draw a line for each group, and on it a dot for each number.

    Args:
        groups: for each group its numbers, by name; a name has one colour and one shape in all groups.
        ax: axes to draw into; new ones if None.
        level: name and place of a vertical line to compare with.
        log: logarithmic axis, for ratios; the numbers are above 0 then.
        colors: the colour of some names; their order decides the shapes, so that both are the same in several pictures.
        title: above the picture.
        xlabel: what the numbers are, with their unit.

    Returns:
        The axes.

    Raises:
        ValueError: a number has no logarithm, and ``log`` asks for one.
        MissingDependencyError: matplotlib is not installed.

    Example:
        >>> from benchmarks.charts import dots
        >>> from matplotlib.figure import Figure
        >>> ax = dots({"mean": {"a": 2., "b": 8.}, "sum": {"a": 3.}}, Figure().subplots(), log=True)
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['mean', 'sum']
    """
    for group, numbers in groups.items():
        for name, number in numbers.items():
            if log and not number > 0:
                raise ValueError(
                    f"{name!r} of {group!r} is {number:g}, which has no logarithm; draw with log=False"
                )
    ax = axes_to_draw_into(ax)
    from matplotlib.ticker import FuncFormatter

    names = list(dict.fromkeys(name for numbers in groups.values() for name in numbers))
    for order, name in enumerate(names):
        rows = [row for row, numbers in enumerate(groups.values()) if name in numbers]
        ax.plot(
            [numbers[name] for numbers in groups.values() if name in numbers],
            rows,
            linestyle="none",
            marker=MARKERS[style_number(name, colors, order) % len(MARKERS)],
            markersize=7,
            color=(colors or {}).get(name, COLORS[order % len(COLORS)]),
            label=name,
        )
    if log:
        ax.set_xscale("log")
        plain = FuncFormatter(lambda number, _: f"{number:g}")
        ax.xaxis.set_major_formatter(plain)
        low, high = ax.get_xlim()
        if high < 20 * low:  # then there are labels between the powers of ten, which would overlap elsewhere
            ax.xaxis.set_minor_formatter(plain)
    if level is not None:
        ax.axvline(level[1], label=level[0], color=INK, linewidth=1)
    ax.set_yticks(range(len(groups)), list(groups))
    ax.set_ylim(max(len(groups), 1) - 0.5, -0.5)  # the first group on top
    ax.grid(color="#dddddd", linewidth=0.8)
    ax.set_axisbelow(True)
    entries = len(names) + (level is not None)
    if entries > 1:  # above the dots, where it can hide none
        ax.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=min(entries, 3),
            borderaxespad=0.2,
            fontsize=TICK_SIZE,
            frameon=False,
            labelcolor=INK,
        )
    dress(ax, title, xlabel, None, pad=12 + 24 * -(-entries // 3) if entries > 1 else 12)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return ax
