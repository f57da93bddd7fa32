"""A few numbers side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from maskgrad.plot.canvas import COLORS, INK, TICK_SIZE, axes_to_draw_into, dress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bars"]

HEIGHT = 0.36


def bars(
    groups: Mapping[str, Mapping[str, float]],
    ax: Axes | None = None,
    *,
    title: str | None = None,
    xlabel: str | None = None,
    number_format: str = "{:.3g}",
) -> Axes:
    """Draw horizontal bars, each with its number.

    Args:
        groups: for each group its bars, by name; a name has one colour in all groups.
        ax: axes to draw into; new ones if None.
        title: above the picture.
        xlabel: what the lengths are, with their unit.
        number_format: how to write a number.

    Returns:
        The axes.

    Raises:
        MissingDependencyError: matplotlib is not installed.

    Example:
        >>> from examples.movielens.bars import bars
        >>> from matplotlib.figure import Figure
        >>> ax = bars({"step": {"maskgrad": 1.25, "PyTorch": 2.}}, Figure().subplots(), xlabel="time (ms)")
        >>> [text.get_text() for text in ax.texts]
        ['1.25', '2']
    """
    ax = axes_to_draw_into(ax)
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    for order, name in enumerate(names):
        places = [
            number + (order - (len(names) - 1) / 2) * HEIGHT
            for number, group in enumerate(groups.values())
            if name in group
        ]
        lengths = [group[name] for group in groups.values() if name in group]
        drawn = ax.barh(places, lengths, HEIGHT * 0.9, label=name, color=COLORS[order % len(COLORS)])
        ax.bar_label(
            drawn,
            labels=[number_format.format(length) for length in lengths],
            padding=4,
            fontsize=TICK_SIZE,
            color=INK,
        )
    ax.set_yticks(range(len(groups)), list(groups))
    ax.invert_yaxis()  # the first group on top
    ax.margins(x=0.14)  # room for the numbers
    if len(names) > 1:  # between title and bars, where it can hide neither
        ax.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=len(names),
            borderaxespad=0.2,
            fontsize=TICK_SIZE,
            frameon=False,
            labelcolor=INK,
        )
    dress(ax, title, xlabel, None, pad=36 if len(names) > 1 else 12)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return ax
