"""Tables in Markdown, from rows that were measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from benchmarks.case import OURS
from benchmarks.goals import GOALS, Goal
from benchmarks.provenance import is_busy
from benchmarks.results import Row

__all__ = ["by_case", "family_table", "goals_table", "judged_goals", "provenance_note"]

MET, MISSED = "✓", "✗"


def by_case(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each case together, maskgrad's first, in the order of their measurement."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(row.case, []).append(row)
    return [sorted(group, key=lambda row: row.peer != OURS) for group in found.values()]


def judged_goals(rows: Sequence[Row], goals: Iterable[Goal] = GOALS) -> list[tuple[Goal, list[Row]]]:
    """Each goal that was measured, with the rows that it speaks of."""
    found = [(goal, [row for row in rows if goal.concerns(row)]) for goal in goals]
    return [(goal, concerned) for goal, concerned in found if concerned]


def goals_table(rows: Sequence[Row], goals: Iterable[Goal] = GOALS) -> str:
    """A line for each goal, with the case that is furthest from it."""
    lines = ["| case | goal | measured | |", "| --- | --- | ---: | :---: |"]
    judged = judged_goals(rows, goals)
    for (goal, concerned), what in zip(judged, _labels(judged), strict=True):
        worst = goal.worst(concerned)
        measured = f"{goal.value(worst):.3g}"
        if len(concerned) > 1:
            measured = f"{measured} (worst of {len(concerned)}: {_short(worst)})"
        lines.append(f"| {what} | {goal.words} | {measured} | {MET if goal.is_met(worst) else MISSED} |")
    return "\n".join(lines)


def _labels(judged: Sequence[tuple[Goal, list[Row]]]) -> list[str]:
    """What each goal is about; shape and peer are named where two would be called the same."""
    labels = [f"{goal.family}: {_goal_name(goal, concerned)}" for goal, concerned in judged]
    for more in (
        [rows[0].shape if len({row.shape for row in rows}) == 1 else "" for _, rows in judged],
        ["in memory" if goal.quantity == "memory" else "" for goal, _ in judged],
        [f"compared with {goal.peer}" for goal, _ in judged],
    ):
        details = defaultdict(list)
        for label, detail in zip(labels, more, strict=True):
            details[label].append(detail)
        twice = {label for label, found in details.items() if 1 < len(found) == len(set(found))}
        labels = [
            f"{label}, {detail}" if label in twice and detail else label
            for label, detail in zip(labels, more, strict=True)
        ]
    return labels


def _goal_name(goal: Goal, concerned: Sequence[Row]) -> str:
    names = list(dict.fromkeys(row.operation for row in concerned))
    name = ", ".join(names) if len(names) <= 3 else f"{len(names)} operations"
    if goal.work != "*":
        name += f", {concerned[0].work}"
    notes = {row.note.partition(",")[0] for row in concerned}
    if goal.note not in ("*", "") and len(notes) == 1:
        name += f", {notes.pop()}"
    return _cell(name)


def _short(row: Row) -> str:
    return _cell(", ".join(part for part in (row.operation, row.work, row.note) if part))


def family_table(rows: Sequence[Row]) -> str:
    """A line for each case: maskgrad's time, and how many times as long each peer takes."""
    peers = list(dict.fromkeys(row.peer for row in rows if row.peer != OURS))
    head = ["operation", "work", "shape", "specified", "dtype", "maskgrad (ms)", *peers]
    lines = [_line(head), _line(["---"] * 5 + ["---:"] * (len(head) - 5))]
    for group in by_case(rows):
        ours = group[0]
        ratios = {row.peer: f"{row.ratio:.3g}" for row in group[1:]}
        density = "" if ours.density is None else f"{ours.density:.0%}"
        operation = f"{ours.operation}, {ours.note}" if ours.note else ours.operation
        time = f"{ours.median_ms:.3g} ({ours.q1_ms:.3g} to {ours.q3_ms:.3g})"
        cells = [operation, ours.work, ours.shape, density, ours.dtype, time]
        lines.append(_line([_cell(cell) for cell in cells] + [ratios.get(peer, "") for peer in peers]))
    return "\n".join(lines)


def provenance_note(rows: Sequence[Row]) -> str:
    """A sentence on where the numbers come from: machine, versions, date."""
    runs = list(dict.fromkeys(row.provenance for row in rows))
    if not runs:
        return "Nothing was measured."
    facts = dict(runs[-1])
    note = (
        f"Measured on {facts['date']} (UTC) with {facts['threads']} thread{'s' * (str(facts['threads']) != '1')} on "
        f"{facts['cores']} cores of {facts['cpu']}, PyTorch {facts['torch']}, Python {facts['python']}"
    )
    if facts.get("commit"):
        note += f", commit {facts['commit']}"
    note += "."
    if is_busy(facts):
        load = facts["load"]
        note += (
            f" **The machine was busy with other work (load {load}): times are too long, and ratios rough.**"
        )
    if len(runs) > 1:
        note += f" Combined from {len(runs)} runs; every row of the CSV files names its run."
    return note


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
