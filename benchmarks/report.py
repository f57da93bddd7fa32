"""What a run prints: a bar while it measures, then tables, goals and where the files are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from benchmarks.case import OURS, Case
from benchmarks.peers import PEERS, why_absent
from benchmarks.pictures import draw
from benchmarks.plan import Family
from benchmarks.results import Row, read_folder
from benchmarks.runner import Outcome
from benchmarks.table import by_case, judged_goals, provenance_note
from maskgrad.errors import MissingDependencyError

__all__ = ["Progress", "bar_of", "draw_pictures", "print_list", "print_outcome"]

COLORS = {True: "green", False: "red", None: ""}


def bar_of(console: Console) -> bars.Progress:
    """A bar that counts, and disappears at the end; none where the output is no terminal."""
    return bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class Progress:
    """A bar over all cases; a listener of the course."""

    def __init__(self, console: Console, cases: int) -> None:
        self._console = console
        self._bar = bar_of(console)
        self._task = self._bar.add_task("", total=cases)
        self._family = ""

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def family(self, family: Family, cases: int) -> None:  # noqa: ARG002  (the bar counts over all)
        """A family begins."""
        self._family = family.name

    def case(self, case: Case) -> None:
        """A case begins."""
        self._bar.update(self._task, description=escape(f"{self._family}: {case.operation}"))

    def measured(self, rows: Sequence[Row]) -> None:  # noqa: ARG002  (tables come at the end)
        """A case is done."""
        self._bar.advance(self._task)

    def notice(self, message: str) -> None:
        """Something is left out."""
        self._console.print(escape(message), style="yellow")


def print_list(console: Console, families: Sequence[Family]) -> None:
    """Families and peers, for whoever wants to choose."""
    for family in families:
        console.print(f"[bold]{family.name}[/bold]: {escape(family.about)}")
        numbers = [f"a size is: {family.size_is}; sizes {_listed(family.sizes)}"]
        if family.densities:
            numbers.append(f"densities {_listed(family.densities)}")
        numbers.append(f"dtypes {', '.join(family.dtypes)}")
        console.print(Padding(escape("; ".join(numbers)), (0, 0, 0, 4)), highlight=False)
    console.print("\n[bold]Peers[/bold]")
    for name, what in PEERS.items():
        reason = why_absent(name)
        console.print(
            f"[bold]{name}[/bold]: {escape(what)}" + (f" [red]({escape(reason)})[/red]" if reason else "")
        )
    console.print(
        "\nThe first size, density and dtype of a family are its anchor: there everything is measured; the others are "
        "measured one at a time. With --sizes, --densities or --dtypes everything is measured at all of them."
    )


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:,}" if isinstance(number, int) else f"{number:g}" for number in numbers)


def print_outcome(console: Console, outcome: Outcome) -> None:
    """Tables, goals, and what went wrong."""
    for family in dict.fromkeys(row.family for row in outcome.rows):
        console.print(_table(family, [row for row in outcome.rows if row.family == family]))
    goals = judged_goals(outcome.rows)
    if goals:
        console.print(_goals(goals))
    if outcome.rows:
        console.print(provenance_note(outcome.rows).replace("**", ""))
    for failure in outcome.failures:
        console.print(escape(f"STOPPED: {failure}"), style="bold red")
    if outcome.interrupted:
        console.print("Interrupted; what was measured until then is kept.", style="yellow")


def _table(family: str, rows: Sequence[Row]) -> Table:
    """A line for each case, in sections of one kind; green and red are goals met and missed."""
    peers = list(dict.fromkeys(row.peer for row in rows if row.peer != OURS))
    table = Table(title=f"{family}: how many times as long as maskgrad", title_justify="left")
    table.add_column("case", no_wrap=True, min_width=24)
    for column in ("maskgrad (ms)", *peers):
        table.add_column(column, justify="right")
    section = ""
    for group in by_case(rows):
        ours, others = group[0], {row.peer: row for row in group[1:]}
        if _kind(ours) != section:
            section = _kind(ours)
            table.add_section()
            table.add_row(f"[bold]{escape(section)}[/bold]")
        cells = [_ratio(others.get(peer)) for peer in peers]
        table.add_row(escape(_named(ours)), f"{ours.median_ms:.3g}", *cells)
    return table


def _kind(row: Row) -> str:
    density = "" if row.density is None else f"{row.density:.0%}"
    return ", ".join(part for part in (row.work, row.shape, density, row.dtype) if part)


def _named(row: Row) -> str:
    return f"{row.operation}, {row.note}" if row.note else row.operation


def _ratio(row: Row | None) -> str:
    if row is None:
        return ""
    color = COLORS[row.met]
    number = f"{row.ratio:.3g}"
    return f"[{color}]{number}[/{color}]" if color else number


def _goals(goals: Sequence[tuple[Any, list[Row]]]) -> Table:
    table = Table(title="Goals (the case that is furthest from each)", title_justify="left")
    for column in ("family", "case", "goal", "measured"):
        table.add_column(column)
    for goal, concerned in goals:
        worst = goal.worst(concerned)
        number = f"{goal.value(worst):.3g}"
        table.add_row(
            goal.family,
            escape(f"{_named(worst)}, {worst.work}"),
            goal.words,
            number,
            style=COLORS[goal.is_met(worst)],
        )
    return table


def draw_pictures(console: Console, out: Path) -> None:
    """Draw all that lies in ``out``, of this run and of earlier ones, and say where everything is."""
    files = sorted(out.glob("*.csv"))
    if not files:
        return
    try:
        files += list(draw(read_folder(out), out))
    except MissingDependencyError as error:
        console.print(escape(f"No pictures: {error}"), style="yellow")
    except ValueError as error:  # a file of this name that somebody else wrote
        console.print(escape(f"No pictures: {error}; move the file away"), style="yellow")
    # soft_wrap: a path is copied as a whole
    console.print("Report: " + ", ".join(str(path) for path in files), soft_wrap=True)
