"""How a number grows with another, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from maskgrad.plot.canvas import COLORS, DASHES, INK, TICK_SIZE, axes_to_draw_into, dress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["scaling"]

MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def scaling(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    ax: Axes | None = None,
    *,
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    colors: Mapping[str, str] | None = None,
    title: str | None = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
    legend: bool = True,
) -> Axes:
    """Draw curves through points on two logarithmic axes; growth in proportion is a straight line there.

    Args:
        series: for each name its places and its values, all above 0; in any order.
        ax: axes to draw into; new ones if None.
        bands: for some names the lower and the upper end of each value, drawn as a shade.
        colors: the colour of some names; their order decides dashes and marks, so that all are the same in several
            pictures.
        title: above the picture.
        xlabel: what the places are, with their unit.
        ylabel: what the values are, with their unit.
        legend: explain the curves; False where the axes beside it do.

    Returns:
        The axes.

    Raises:
        ValueError: a series has not as many values as places, or a number is not above 0.
        MissingDependencyError: matplotlib is not installed.

    Example:
        >>> from benchmarks.charts import scaling
        >>> from matplotlib.figure import Figure
        >>> ax = scaling({"mean": ([10, 100], [2., 20.])}, Figure().subplots(), ylabel="time (ms)")
        >>> ax.get_xscale(), ax.get_yscale(), len(ax.lines)
        ('log', 'log', 1)
    """
    for name, points in series.items():
        _require_positive(name, points)
    ax = axes_to_draw_into(ax)
    for number, (name, (places, values)) in enumerate(series.items()):
        order = sorted(range(len(places)), key=places.__getitem__)
        x = [places[i] for i in order]
        color = (colors or {}).get(name, COLORS[number % len(COLORS)])
        style = style_number(name, colors, number)
        ax.plot(
            x,
            [values[i] for i in order],
            label=name,
            color=color,
            linestyle=DASHES[style % len(DASHES)],
            marker=MARKERS[style % len(MARKERS)],
            markersize=5,
            linewidth=2.0,
        )
        if bands is not None and name in bands:
            low, high = bands[name]
            ax.fill_between(
                x, [low[i] for i in order], [high[i] for i in order], color=color, alpha=0.2, lw=0
            )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.grid(color="#dddddd", linewidth=0.8)
    ax.set_axisbelow(True)
    if legend and ax.get_legend_handles_labels()[1]:
        ax.legend(fontsize=TICK_SIZE, frameon=False, labelcolor=INK, handlelength=2.6)
    dress(ax, title, xlabel, ylabel)
    return ax


def style_number(name: str, colors: Mapping[str, str] | None, number: int) -> int:
    """Which dashes and marks the name number ``number`` gets: by its place among ``colors``, the others after these."""
    chosen = list(colors or ())
    return chosen.index(name) if name in chosen else len(chosen) + number


def _require_positive(name: str, points: tuple[Sequence[float], Sequence[float]]) -> None:
    places, values = points
    if len(places) != len(values):
        raise ValueError(
            f"series {name!r} has {len(places)} places and {len(values)} values; give one value each"
        )
    wrong = next((number for number in (*places, *values) if not number > 0), None)
    if wrong is not None:
        raise ValueError(
            f"series {name!r} holds {wrong:g}, which has no logarithm; leave the point out, or use mg.plot.curves"
        )
