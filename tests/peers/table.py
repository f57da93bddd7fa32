"""The table of docs/proof.md: each suite with its cases, and each rule with the cases that it explains."""

from __future__ import annotations

import importlib
import pkgutil
import re

import tests.peers.suites
from tests.peers.rules import RULES
from tests.peers.suite import Suite
from tests.written_out import Region

__all__ = ["NAMES", "PAGE", "numbers_of", "suites", "table"]

PAGE = Region("proof.md", "proof table")
NAMES = sorted(module.name for module in pkgutil.iter_modules(tests.peers.suites.__path__))

#: For each suite the version, the number of equal cases, and of explained ones by the difference.
Numbers = dict[str, tuple[str, int, dict[str, int]]]


def suites() -> dict[str, Suite | None]:
    """By the names of their modules; None where the package is not installed."""
    found: dict[str, Suite | None] = {}
    for name in NAMES:
        try:
            found[name] = importlib.import_module(f"tests.peers.suites.{name}").SUITE
        except ModuleNotFoundError:  # noqa: PERF203  # one for each package
            found[name] = None
    return found


def table(numbers: Numbers) -> str:
    """As Markdown."""
    lines = [
        "| package | version | cases | equal | different, by a rule |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for name, (version, equal, explained) in sorted(numbers.items()):
        more = sum(explained.values())
        lines.append(f"| {name} | {version} | {equal + more} | {equal} | {more} |")
    lines += ["", "| package | difference | reason | cases |", "| --- | --- | --- | ---: |"]
    for rule in RULES:
        for name in rule.suites:
            cases = numbers[name][2].get(rule.differs, 0) if name in numbers else 0
            lines.append(f"| {name} | {_cell(rule.differs)} | {_cell(rule.because)} | {cases} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def numbers_of(text: str) -> Numbers:
    """Those that a table has."""
    found: Numbers = {}
    rows = [re.split(r" (?<!\\)\| ", line.strip("|\n ")) for line in text.splitlines()]
    for row in rows:
        if len(row) == 5 and row[2].isdigit():
            found[row[0]] = (row[1], int(row[3]), {})
        elif len(row) == 4 and row[3].isdigit() and row[0] in found:
            found[row[0]][2][row[1].replace("\\|", "|")] = int(row[3])
    return found
