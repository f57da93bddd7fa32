"""What a part of the tour found: a table, a sentence that follows from its numbers, and a picture."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Column", "Part", "seconds_of"]


@dataclass(frozen=True)
class Column:
    """How the numbers of a column are written, and which of them is the best, if any is: ``min``, ``max``."""

    written: str = "{:,.2f}"
    best: Callable[..., float] | None = None
    #: whether to say how far each is from the first row
    compared: bool = False


@dataclass
class Part:
    """Numbers by row and column, and what they say."""

    name: str
    #: made from the numbers, never written beforehand: it also is the title of the picture
    finding: str
    columns: dict[str, Column]
    rows: dict[str, dict[str, float]]
    draw: Callable[[Axes], object] | None = None
    remarks: list[str] = field(default_factory=list)

    def table(self) -> Table:
        """The best of each column is bold; the first row is what the others are compared with."""
        table = Table("", title=self.finding, title_justify="left", title_style="bold", min_width=60)
        for name in self.columns:
            table.add_column(name, justify="right")
        for name, row in self.rows.items():
            table.add_row(name, *(self._cell(row, column) for column in self.columns))
        return table

    def _cell(self, row: dict[str, float], name: str) -> str:
        column, value = self.columns[name], row.get(name)
        if value is None:
            return ""
        text, first = column.written.format(value), next(iter(self.rows.values())).get(name, math.nan)
        finite = [other[name] for other in self.rows.values() if math.isfinite(other.get(name, math.nan))]
        if column.best is not None and text == column.written.format(column.best(finite)):
            text = f"[bold green]{text}[/]"
        if column.compared and row is not next(iter(self.rows.values())):
            text += f" [dim]({value / first - 1:+.0%})[/]"
        return text


def seconds_of(work: Callable[[], object]) -> float:
    """How long ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
