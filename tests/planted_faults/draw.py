"""``python -m tests.planted_faults.draw``: draw faults with cosmic-ray's operators, into drawn.json.

First a place in the sources is drawn, then one of the operators that change something there: else most faults would
be one arithmetic operator in the place of another. Annotations are left out; nobody runs them. What was drawn before
and still has its place is kept, with what has been found out about it; only what is missing is drawn.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.planted_faults.fault import ROOT, SOURCES

__all__ = ["DRAWN", "is_drawn_from"]

DRAWN = Path(__file__).with_name("drawn.json")

Place = tuple[str, tuple[int, int]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.planted_faults.draw", description=__doc__)
    parser.add_argument("--number", type=int, default=100, help="how many there are to be")
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    drawn = [fault for fault in _read() if _text(fault["file"]).count(fault["old"]) == 1]
    taken = {(fault["file"], fault["operator"], fault["occurrence"]) for fault in drawn}
    places = found(sorted((ROOT / SOURCES).rglob("*.py")))
    chance = random.Random(wanted.seed)
    for place in chance.sample(sorted(places), len(places)):
        if len(drawn) >= wanted.number:
            break
        file, (line, _) = place
        operator, occurrence = chance.choice(places[place])
        if (file, operator, occurrence) in taken:
            continue
        change = changed(_text(file), operator, occurrence)
        if change is not None:
            old, new = change
            drawn.append({
                "file": file, "line": line, "operator": operator, "occurrence": occurrence,
                "old": old, "new": new, "equivalent": "",
            })  # fmt: skip
    lines = ",\n".join(json.dumps(fault, ensure_ascii=False) for fault in drawn)
    DRAWN.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def found(paths: list[Path]) -> dict[Place, list[tuple[str, int]]]:
    """The operators, each with the number of its occurrence, that change something at a place of what is drawn from."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.operators.provider import OperatorProvider

    provider, places = OperatorProvider(), defaultdict(list)
    operators = {name: provider[name]() for name in provider if not provider[name].arguments()}
    for path in paths:
        file = path.relative_to(ROOT / SOURCES).as_posix()
        if not is_drawn_from(file):
            continue
        text = _text(file)
        unread = list(_annotations(text))
        counts: defaultdict[str, int] = defaultdict(int)
        for node in ast_nodes(get_ast(text)):
            for name, operator in operators.items():
                for begin, _ in operator.mutation_positions(node):
                    if not any(low <= begin < high for low, high in unread):
                        places[file, begin].append((name, counts[name]))
                    counts[name] += 1
    return places


def is_drawn_from(file: str) -> bool:
    """What operations mean, and the references of kernels."""
    parts = file.split("/")
    return parts[0] == "semantics" or (parts[0] == "kernels" and parts[1:][1:] == ["__init__.py"])


def _annotations(text: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for node in ast.walk(ast.parse(text)):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(part, ast.expr):
                yield (part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)


def changed(text: str, operator: str, occurrence: int) -> tuple[str, str] | None:
    """Whole lines that occur once, and what they become; None if that is no Python, or the same."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.operators.provider import OperatorProvider

    mutated = mutate_code(text, OperatorProvider()[operator](), occurrence)
    try:
        if mutated is None or ast.dump(ast.parse(mutated)) == ast.dump(ast.parse(text)):
            return None
    except SyntaxError:
        return None
    lines, others = text.splitlines(keepends=True), mutated.splitlines(keepends=True)
    opcodes = [
        code
        for code in difflib.SequenceMatcher(None, lines, others, False).get_opcodes()
        if code[0] != "equal"
    ]
    first, last, start, end = opcodes[0][1], opcodes[-1][2], opcodes[0][3], opcodes[-1][4]
    while text.count("".join(lines[first:last])) != 1:
        first, start = first - 1, start - 1
    return "".join(lines[first:last]), "".join(others[start:end])


def _text(file: str) -> str:
    return (ROOT / SOURCES / file).read_text(encoding="utf-8")


def _read() -> list[dict[str, Any]]:
    faults: list[dict[str, Any]] = json.loads(DRAWN.read_text(encoding="utf-8")) if DRAWN.exists() else []
    return faults


if __name__ == "__main__":
    main()
