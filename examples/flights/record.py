"""Keep a report: ``python -m examples.flights.record flights-report``.

``metrics.json`` goes beside this file, the pictures are drawn from it, and the numbers go into the README.
That is also a page of the documentation; no result there is typed by hand.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from .pictures import draw
from .report import TABLES, Spread, models, rows, spread

__all__ = ["FOLDER", "findings", "main", "page"]

FOLDER = Path(__file__).parent
BEGIN, END = "<!-- flights report: made by record.py -->", "<!-- end of flights report -->"
_REGION = re.compile(f"{BEGIN}.*?{END}", re.DOTALL)


def page(text: str, content: dict[str, Any]) -> str:
    """``text`` with the report of ``content`` between its marks."""
    tables = [_table(*rows(content, number)) for number in range(len(TABLES))]
    report = "\n\n".join([tables[0], tables[1], _caption(content), *findings(content)])
    return _REGION.sub(lambda _: f"{BEGIN}\n\n{report}\n\n{END}", text)


def _table(header: list[str], lines: list[list[str]], best: list[list[bool]]) -> str:
    """In Markdown; the best of each column is bold."""
    parts = [f"| {' | '.join(header)} |", "| --- |" + " ---: |" * (len(header) - 1)]
    for (name, *cells), marks in zip(lines, best, strict=True):
        unbroken = [cell.replace(" ", "&nbsp;") for cell in cells]
        shown = [f"**{cell}**" if mark else cell for cell, mark in zip(unbroken, marks, strict=True)]
        parts.append(f"| {' | '.join([name, *shown])} |")
    return "\n".join(parts)


def _caption(content: dict[str, Any]) -> str:
    settings, versions = content["settings"], content["versions"]
    sample = "all flights" if settings["every"] == 1 else f"one flight of {settings['every']}"
    return (
        f"*{sample[0].upper()}{sample[1:]}: {content['flights']['training']:,} for training, "
        f"{content['flights']['test']:,} for testing. Means and standard deviations of {settings['seeds']} seeds, "
        f"{settings['epochs']} epochs. Steps: medians in turns, processor time of one thread. "
        f"maskgrad {versions['maskgrad']}, PyTorch {versions['torch']}.*"
    )


def findings(content: dict[str, Any]) -> list[str]:
    """What the numbers say, whoever is ahead."""
    known = [name for name in models(content) if name != "mean of training"]
    return [
        _errors(content, known),
        _holes(content["missing"]),
        _outage(content, known),
        _steps(content["milliseconds per step"]),
    ]


def _errors(content: dict[str, Any], names: list[str]) -> str:
    found = {name: spread(content, name, False, "test", "rmse") for name in names}
    ranked = sorted(names, key=lambda name: found[name].mean)
    first, own = ranked[0], ranked.index("masked") + 1
    width = found[ranked[-1]].mean - found[first].mean
    begin = (
        f"**The masked network has the smallest error** ({found['masked']})"
        if own == 1
        else f"**The masked network is not the best.** Its RMSE, {found['masked']}, is number {own} of {len(names)}; "
        f"the best: {first}, {found[first]}"
    )
    moves = max(one.deviation or 0.0 for one in found.values())
    ends = f"All {len(names)} are within {width:.2f} minutes; a network varies by up to {moves:.2f} between seeds."
    return f"{begin}. {ends}"


def _holes(missing: dict[str, float]) -> str:
    """Where the holes are: most of them in few columns."""
    first, second, *_ = sorted(missing, key=missing.__getitem__, reverse=True)
    share = (missing[first] + missing[second]) / sum(missing.values())
    return (
        f"One reason for the small differences: {share:.0%} of the holes are in two of {len(missing)} "
        f"columns, `{first}` and `{second}`, which every way treats mostly as constants."
    )


def _outage(content: dict[str, Any], names: list[str]) -> str:
    said = []
    for trained, words in ((False, "trained on the original data"), (True, "trained with outages")):
        costs = {name: _cost(content, name, trained) for name in names}
        listed = ", ".join(f"{name} {costs[name]:+.2f}" for name in sorted(names, key=costs.__getitem__))
        said.append(f"{words}: {listed}")
    return f"Error added by the silent stations of December, in minutes; {'; '.join(said)}."


def _cost(content: dict[str, Any], name: str, outages: bool) -> float:
    without: Spread = spread(content, name, outages, "December without weather", "rmse")
    return without.mean - spread(content, name, outages, "December", "rmse").mean


def _steps(times: dict[str, float]) -> str:
    ratios = ", ".join(
        f"{times['masked'] / time:.2f} times: {name}" for name, time in times.items() if name != "masked"
    )
    return f"Time of a masked step, relative to others: {ratios}."


def main(arguments: list[str]) -> None:
    """Keep the report, if one is named, and write the page."""
    if arguments:
        shutil.copy(Path(arguments[0]) / "metrics.json", FOLDER)
    content = json.loads((FOLDER / "metrics.json").read_text(encoding="utf-8"))
    if arguments:
        draw(content, FOLDER)
    readme = FOLDER / "README.md"
    readme.write_text(page(readme.read_text(encoding="utf-8"), content), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
