"""Writes the table of all pairs of features into docs/testing.md: ``python -m tests.pairs.table``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, product

from tests.pairs.features import LAYOUTS, MODULES, OPTIONS, WAYS
from tests.pairs.programs import Program
from tests.written_out import Region

__all__ = ["PAGE", "programs_of", "programs_of_two_ways", "refusal_of", "table"]

PAGE = Region("testing.md", "pairs table")

#: Features that cannot be together, and the words of the refusal; all programs with other features must be right.
REFUSED: dict[frozenset[str], str] = {
    **{
        frozenset(
            (module, "COO")
        ): "is not supported for the layout torch.sparse_coo. Convert explicitly with x.to_dense()"
        for module in MODULES
        if module != "`nn.Linear`"
    }
}

#: What two ways are tried on.
_OF_TWO_WAYS = (
    ("`mg.nn.Embedding`", "Boolean mask"),
    ("`mg.nn.Embedding`", "jagged"),
    ("`mg.nn.EmbeddingBag`", "Boolean mask"),
    ("`nn.Linear`", "Boolean mask"),
)


def programs_of(module: str, way: str | None = None) -> Iterator[Program]:
    """All layouts with all options; with a way to run the step each layout with one of them, in turn."""
    numbers = {name: i for i, name in enumerate((*MODULES, *LAYOUTS, *OPTIONS, *WAYS))}
    for layout, option in product(LAYOUTS, OPTIONS):
        turn = numbers[module] + numbers[layout] + numbers[option] + numbers.get(way or "", 0)
        if way is None:
            yield Program(module, layout, option)
        elif turn % len(OPTIONS) == 0:
            yield Program(module, layout, option, (way,))


def programs_of_two_ways(first: str, second: str) -> Iterator[Program]:
    """A few modules and layouts, with each option in turn."""
    for i, (module, layout) in enumerate(_OF_TWO_WAYS):
        option = list(OPTIONS)[(i + WAYS.index(first) + WAYS.index(second)) % len(OPTIONS)]
        yield Program(module, layout, option, (first, second))


def refusal_of(features: Iterable[str]) -> str | None:
    """The words with which a program with these features is refused; None: it must be right."""
    given = set(features)
    return next((words for together, words in REFUSED.items() if together <= given), None)


def table() -> str:
    """The page: a row for each feature, a column for each that it can be put together with."""
    groups: tuple[tuple[str, ...], ...] = (tuple(MODULES), tuple(LAYOUTS), tuple(OPTIONS), WAYS)
    columns = [name for group in groups[1:] for name in group]
    words = list(dict.fromkeys(REFUSED.values()))
    pairs, refused = 0, 0
    lines = ["| | " + " | ".join(columns) + " |", "| --- |" + " :-: |" * len(columns)]
    for number, group in enumerate(groups):
        later = [name for following in groups[number + 1 :] for name in following]
        for place, name in enumerate(group):
            partners = {*later, *(group[place + 1 :] if group is WAYS else ())}
            cells = [_cell(name, column, words) if column in partners else "" for column in columns]
            pairs += len(partners)
            refused += sum("refused" in cell for cell in cells)
            if partners:
                lines.append(f"| {name} | " + " | ".join(cells) + " |")
    tried = sum(1 for module in MODULES for way in (None, *WAYS) for _ in programs_of(module, way))
    tried += sum(1 for pair in combinations(WAYS, 2) for _ in programs_of_two_ways(*pair))
    notes = [f"{i}. “… {text}”{_where(text)}" for i, text in enumerate(words, 1)]
    head = f"{pairs} pairs, of which {refused} are refused, in {tried} programs:"
    return "\n\n".join([head, "\n".join(lines), "Messages of the refusals:", "\n".join(notes)]) + "\n"


def _cell(one: str, other: str, words: list[str]) -> str:
    whole = REFUSED.get(frozenset((one, other)))
    if whole is not None:
        return f"refused ({words.index(whole) + 1})"
    if {one, other} & set(MODULES):
        return "✓"
    parts = {words.index(text) + 1 for together, text in REFUSED.items() if {one, other} < together}
    return "✓" + "".join(f" ({i})" for i in sorted(parts))


def _where(text: str) -> str:
    """With which others a refusal concerns two features that work together otherwise."""
    found = [together for together, own in REFUSED.items() if own == text and len(together) > 2]
    if not found:
        return ""
    common = frozenset.intersection(*found)
    modules = [name for name in MODULES if any(name in together for together in found)]
    return f" ({' with '.join(w for w in WAYS if w in common)}, only for {' and '.join(modules)})"


if __name__ == "__main__":
    PAGE.write(table())
