"""The tables of docs/in_the_wild.md, from the results of a run."""

from __future__ import annotations

import importlib.metadata
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.provenance import provenance
from benchmarks.wild.explained import EXPLAINED
from tests.written_out import Region

__all__ = ["PAGE", "RESULTS", "facts", "read", "tables", "verdict"]

PAGE = Region("in_the_wild.md", "results")
RESULTS = Path(__file__).parents[1] / "results" / "wild.jsonl"
VERDICTS = ("found", "missed", "incomplete", "false alarm", "clean")
Row = dict[str, Any]


def facts() -> dict[str, str]:
    """Machine and versions, those of the examined packages included."""
    from benchmarks.wild.packages import MODELS

    names = {"transformers"} | {model.package for model in MODELS.values()} - {"torch"}
    installed = {found.name.lower(): found.version for found in importlib.metadata.distributions()}
    found = {name: installed[name.lower()] for name in sorted(names) if name.lower() in installed}
    return provenance() | found


def read(path: Path) -> list[Row]:
    """The rows of a file of results without its facts."""
    return [row for row in _lines(path) if "facts" not in row]


def _lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def verdict(row: Row) -> str:
    """What became of one examination; incomplete: nothing was found, and the report says what was not examined."""
    if row["oracle"]:
        return "found" if row["doctor"] else "incomplete" if row.get("unexamined") else "missed"
    return "false alarm" if row["doctor"] else "clean"


def tables(path: Path) -> str:
    """The page's tables; what is in them is in the file."""
    known = {key: text for row in _lines(path) for key, text in row.get("facts", {}).items()}
    rows = read(path)
    done = [row for row in rows if "oracle" in row]
    parts = [
        "Written by `python -m benchmarks.wild page` from `benchmarks/results/wild.jsonl`.\n",
        _summary(done, known),
        _counts(done),
        "### Leaks\n",
        _leaks(done, known),
        "### Left padding that shifts positions\n",
        _shifted(done),
        "### Where doctor and oracle disagree\n",
        _disagreements(done),
        "### Not examined\n",
        _not_examined(rows),
    ]
    return "\n".join(parts)


def _summary(done: list[Row], known: dict[str, str]) -> str:
    of_hub = {row["name"] for row in done if row["package"] == "transformers"}
    others = {row["name"] for row in done if row["package"] != "transformers"}
    packages = {row["package"] for row in done} - {"transformers", "torch"}
    kinds = Counter(map(verdict, done))
    return (
        f"**{len(of_hub)} architectures** of transformers {known.get('transformers', '')} and **{len(others)} models** "
        f"of {len(packages)} other packages, {len(done)} examinations: {kinds['found']} with a leak that was found, "
        f"**{kinds['missed']} missed**, {kinds['incomplete']} incomplete, **{kinds['false alarm']} false alarms**, "
        f"{kinds['clean']} clean. "
        f"PyTorch {known.get('torch', '')}, {known.get('cpu', '')}, {known.get('date', '')}.\n"
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def _counts(done: list[Row]) -> str:
    rows = []
    for kind, belongs in (("transformers", True), ("other packages", False)):
        for side in ("right", "left"):
            for mode in ("eval", "train"):
                those = [
                    row for row in done
                    if (row["package"] == "transformers") == belongs and (row["side"], row["mode"]) == (side, mode)
                ]  # fmt: skip
                found = Counter(map(verdict, those))
                rows.append([kind, side, mode, len(those), *(found[name] for name in VERDICTS)])
    return _table(["", "padding", "mode", "examined", *VERDICTS], rows)


def _shifts(row: Row) -> bool:
    """Whether other padding changes nothing, and the number of padded columns on the left does."""
    return row["side"] == "left" and "rewritten" not in row["oracle"] and bool(row["oracle"])


def _leaks(done: list[Row], known: dict[str, str]) -> str:
    rows = []
    for model, those in _by_model([row for row in done if row["oracle"] and not _shifts(row)]).items():
        sides = list(dict.fromkeys(row["side"] for row in those))
        largest = {
            key: max(row["sizes"].get(key, 0.0) for row in those) for key in ("rewritten", "longer", "alone")
        }
        first = next((row for row in those if row.get("lines")), those[0])
        package = those[0]["package"]
        sizes = map(_percent, largest.values())
        line = first.get("lines", ["missed"])[0]
        rows.append([f"{package} {known.get(package, '')}", _called(*model), ", ".join(sides), *sizes, line])
    head = [
        "package",
        "model",
        "padding",
        "other padding",
        "more padding",
        "alone",
        "line that the doctor names",
    ]
    return _table(head, rows)


def _percent(size: float) -> str:
    if size == float("inf"):
        return "another shape"
    return f"{size:.0%}" if size >= 0.01 else f"{size:.0e}" if size else ""


def _called(package: str, name: str, model: str) -> str:
    return f"{name} (`{model}`)" if package == "transformers" else name


def _by_model(rows: list[Row]) -> dict[tuple[str, str, str], list[Row]]:
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["package"], row["name"], row["model"]), []).append(row)
    return dict(sorted(found.items(), key=lambda entry: (entry[0][0] != "transformers", entry[0])))


def _shifted(done: list[Row]) -> str:
    names = sorted({f"`{row['name']}`" for row in done if _shifts(row)})
    return ", ".join(names) + ".\n" if names else "None.\n"


def _disagreements(done: list[Row]) -> str:
    wrong = [row for row in done if verdict(row) not in ("found", "clean")]
    rows = []
    for (package, name, model), those in _by_model(wrong).items():
        where = ", ".join(dict.fromkeys(f"{row['side']} {row['mode']}" for row in those))
        sizes = " ".join(
            f"{key} {size:.1g}" for key, size in those[0]["sizes"].items() if key in those[0]["oracle"]
        )
        why = EXPLAINED.get(name, "not explained yet")
        rows.append([verdict(those[0]), package, _called(package, name, model), where, sizes, why])
    return _table(["", "package", "model", "where", "oracle", "why"], rows) if rows else "Nowhere.\n"


def _not_examined(rows: list[Row]) -> str:
    left = Counter(_reason(row["not_examined"]) for row in rows if "not_examined" in row)
    return _table(["models", "why"], ([count, reason] for reason, count in left.most_common()))


def _reason(text: str) -> str:
    known: list[tuple[str, Callable[[str], bool]]] = [
        ("takes no mask, or input that is not made here", lambda text: text.startswith("NothingToPad")),
        (
            "needs a package that is not installed",
            lambda text: text.startswith(("ImportError", "ModuleNotFound")),
        ),
        (
            "more than 30 million parameters with the sizes known here",
            lambda text: "million parameters" in text,
        ),
        ("takes too long", lambda text: text.startswith("more than")),
        ("loss or gradient is no number as it is", lambda text: "before anything is changed" in text),
    ]
    return next(
        (reason for reason, fits in known if fits(text)), "the tiny configuration or input does not fit it"
    )
