"""Pictures of what was measured. Each is drawn from the rows, if there are rows for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.case import OURS
from benchmarks.charts import dots, scaling
from benchmarks.masked_comparison import FORWARD, FORWARD_AND_BACKWARD
from benchmarks.results import Row
from maskgrad.plot.canvas import INK, TICK_SIZE, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "draw"]

#: a peer has one colour in all pictures
COLORS = {
    OURS: "#0072B2",
    "torch.masked": "#D55E00",
    "torch.sparse": "#D55E00",
    "torch.optim": "#D55E00",
    "where": "#E69F00",
    "scipy": "#E69F00",
    "fbgemm": "#E69F00",
    "compiled-where": "#009E73",
    "torch.sparse-csr": "#009E73",
    "indexing": "#56B4E9",
    "dense": "#000000",
    "torch.optim-dense": "#000000",
    "torch.optim-fused": "#000000",
    "torch.optim-foreach": "#E69F00",
    "torch.optim-single": "#D55E00",
    "by-hand": "#000000",
    "maskgrad, Boolean mask": "#56B4E9",
    "bare-values": "#000000",
    "memory-copy": "#CC79A7",
}
_ANCHORED = ("reductions", "softmax", "normalization", "losses", "elementwise", "filling")
_RATIO = "times as long as maskgrad (right of the line: maskgrad is faster)"
_DOTS_PER_INCH = 110

#: who is in the picture of the roofline: those that must read values and mask
_READING_ALL = (OURS, "torch.masked", "where", "compiled-where", "memory-copy")

Rows = Sequence[Row]
Groups = dict[str, dict[str, float]]


def draw(rows: Rows, out: Path) -> Iterator[Path]:
    """Draw what ``rows`` have numbers for into the folder ``out``, and name each file when it is there.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    for name, picture in PICTURES.items():
        drawn = picture(rows)
        if drawn is not None:
            path = out / f"{name}.png"
            drawn.savefig(path, dpi=_DOTS_PER_INCH)
            yield path


def _forward(rows: Rows) -> Figure | None:
    """All families of dense tensors; of the reductions those along rows."""
    found = [row for row in _at_anchor(rows) if row.work == FORWARD and not row.note]
    found = [row for row in found if row.family != "reductions" or "(1)" in row.operation]
    return _ratios(found, "Forward: time beside maskgrad's")


def _reductions(rows: Rows) -> Figure | None:
    """Reductions along rows, columns, a dimension in the middle, and over everything."""
    found = [row for row in _at_anchor(rows) if row.work == FORWARD and row.family == "reductions"]
    return _ratios(found, "Reductions: time beside maskgrad's")


def _backward(rows: Rows) -> Figure | None:
    found = [row for row in _at_anchor(rows) if row.work == FORWARD_AND_BACKWARD]
    return _ratios(found, "Forward and backward: time beside maskgrad's")


def _ratios(rows: Rows, title: str) -> Figure | None:
    """How long the peers take."""
    groups: Groups = {}
    for row in rows:
        if row.peer not in (OURS, "memory-copy"):
            groups.setdefault(_label(row), {})[row.peer] = row.ratio
    return _dots(groups, title)


def _sparse(rows: Rows) -> Figure | None:
    """The same for stored entries."""
    groups: Groups = {}
    for row in rows:
        if row.family in ("storage", "coalescing") and not row.peer.startswith(OURS):
            groups.setdefault(f"{row.operation}, {row.shape}, {row.note}", {})[row.peer] = row.ratio
    return _dots(groups, "Stored entries: time beside maskgrad's", width=10.5)


def _steps(rows: Rows) -> Figure | None:
    """Optimizers of whole models with dense gradients."""
    groups: Groups = {}
    for row in rows:
        if row.family == "steps" and row.peer != OURS:
            groups.setdefault(f"{row.operation}, {row.note.split()[0]} of {row.shape}", {})[row.peer] = (
                row.ratio
            )
    return _dots(groups, "Dense gradients: close to the fastest of PyTorch's ways")


def _models(rows: Rows) -> Figure | None:
    """Whole models beside masking by hand."""
    groups: Groups = {}
    for row in rows:
        if row.family == "models" and row.peer != OURS:
            groups.setdefault(f"{row.operation}, {row.shape}", {})[row.peer] = row.ratio
    return _dots(groups, "Whole models: by hand is faster where they are small")


def _ragged(rows: Rows) -> Figure | None:
    """Models on jagged batches: beside padded ones, and how the time grows with the real positions."""
    found = [row for row in rows if row.family == "ragged"]
    groups: Groups = {}
    for row in found:
        if row.peer != OURS and not row.note:
            label = f"{row.operation}, {row.shape}, {100 * (row.density or 1):.0f} % real"
            groups.setdefault(label, {})[row.peer] = row.ratio
    growing: dict[str, tuple[list[float], list[float]]] = {}
    for row in found:
        if row.note == "growth" and row.peer in (OURS, "by-hand"):
            real = row.entries / int(row.shape.split("x")[-1]) * (row.density or 1)
            places, times = growing.setdefault(row.peer, ([], []))
            places.append(real)
            times.append(row.median_ms)
    if not groups or not growing:
        return None
    drawn = figure(10.5, 9.5)
    above, below = drawn.subplots(2, 1, height_ratios=(3, 2))
    dots(
        groups, above, level=(OURS, 1.0), log=True, colors=COLORS, xlabel=_RATIO,
        title="Padded batches cost their padding",
    )  # fmt: skip
    scaling(
        growing, below, colors=COLORS, title="Jagged: in proportion to the real positions",
        xlabel="real positions", ylabel="time (ms)",
    )  # fmt: skip
    return drawn


def _dots(groups: Groups, title: str, width: float = 8.5) -> Figure | None:
    if not groups:
        return None
    drawn = figure(width, 2.2 + 0.27 * len(groups))
    dots(
        groups,
        drawn.subplots(),
        level=(OURS, 1.0),
        log=True,
        colors=COLORS,
        title=title,
        xlabel=_RATIO,
    )
    return drawn


def _density(rows: Rows) -> Figure | None:
    """Time over the share of specified entries, at the anchor's size."""
    anchor = _at_anchor(rows, any_density=True)
    named = ("mean(1)", "var(1)", "softmax(1)", "a * a")
    found = [
        row
        for row in anchor
        if row.operation in named and row.work == FORWARD and not row.note and row.peer != "memory-copy"
    ]
    panels = {name: [row for row in found if row.operation == name] for name in named}
    panels = {name: lines for name, lines in panels.items() if len({row.density for row in lines}) > 1}
    drawn = _panels(panels, lambda row: (row.density or 0.0) * 100, "specified entries (%)")
    if drawn is not None:
        from matplotlib.ticker import FuncFormatter

        for ax in drawn.axes:
            ax.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
    return drawn


def _updates(rows: Rows) -> Figure | None:
    """Time of a step over the number of rows that get a gradient."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        if row.family == "updates" and row.note.endswith("each twice"):
            panels.setdefault(f"{row.operation}: {row.work}", []).append(row)
    panels = {name: lines for name, lines in panels.items() if len({row.note for row in lines}) > 1}
    return _panels(panels, lambda row: int(row.note.split()[0]), "rows with a gradient")


def _panels(panels: Mapping[str, Iterable[Row]], place: Callable[[Row], float], xlabel: str) -> Figure | None:
    """One panel for each name, in rows of three; time in milliseconds with its quartiles."""
    if not panels:
        return None
    columns = min(len(panels), 3)
    lines = -(-len(panels) // columns)
    drawn = figure(4.3 * columns, 3.9 * lines)
    axes = list(drawn.subplots(lines, columns, squeeze=False).flat)
    for ax, (name, rows) in zip(axes, panels.items(), strict=False):
        by_peer: dict[str, list[Row]] = {}
        for row in rows:
            by_peer.setdefault(row.peer, []).append(row)
        scaling(
            {
                peer: ([place(row) for row in its], [row.median_ms for row in its])
                for peer, its in by_peer.items()
            },
            ax,
            bands={
                peer: ([row.q1_ms for row in its], [row.q3_ms for row in its])
                for peer, its in by_peer.items()
            },
            colors=COLORS,
            title=name,
            xlabel=xlabel,
            ylabel="time (ms)",
            legend=False,
        )
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    _legend(drawn)
    return drawn


def _legend(drawn: Figure) -> None:
    """One legend for all panels, above them."""
    handles: dict[Any, Any] = {}
    for ax in drawn.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    drawn.legend(
        handles=list(handles.values()),
        labels=list(handles),
        loc="outside upper left",
        ncols=6,
        frameon=False,
        fontsize=TICK_SIZE,
        labelcolor=INK,
    )


def _roofline(rows: Rows) -> Figure | None:
    """Bytes per second: what an operation must move, divided by its time, beside a copy of as many bytes."""
    groups: Groups = {}
    copies = []
    for row in _at_anchor(rows):
        speed = row.gigabytes_per_second
        if speed is None or row.work != FORWARD or row.peer not in _READING_ALL:
            continue
        if row.peer == "memory-copy":
            copies.append(speed)
        else:
            groups.setdefault(_label(row), {})[row.peer] = speed
    if not groups or not copies:
        return None
    drawn = figure(8.5, 2.2 + 0.27 * len(groups))
    dots(
        groups,
        drawn.subplots(),
        level=("memory copy", sorted(copies)[len(copies) // 2]),
        colors=COLORS,
        title="How close to the speed of memory",
        xlabel="bytes that must be moved, per second (GB/s)",
    ).set_xlim(left=0)
    return drawn


def _at_anchor(rows: Rows, any_density: bool = False) -> list[Row]:
    """Rows of dense tensors at the largest size measured, float32, half specified; family by family."""
    dense = [row for row in rows if row.family in _ANCHORED and row.dtype == "float32"]
    dense.sort(key=lambda row: _ANCHORED.index(row.family))
    square = max((row.entries for row in dense), default=0)
    return [
        row
        for row in dense
        if (any_density or row.density == 0.5) and (row.entries == square or row.note == "middle")
    ]


def _label(row: Row) -> str:
    return f"{row.operation}, {row.note}" if row.note else row.operation


PICTURES: dict[str, Callable[[Rows], Figure | None]] = {
    "forward": _forward,
    "reductions": _reductions,
    "backward": _backward,
    "density": _density,
    "roofline": _roofline,
    "sparse": _sparse,
    "updates": _updates,
    "steps": _steps,
    "models": _models,
    "ragged": _ragged,
}
