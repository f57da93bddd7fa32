"""What several pages say of the same thing is the same, and is so: one table."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from benchmarks import sweep
from maskgrad import versions
from maskgrad.kernels.selection import LARGE
from maskgrad.masked_tensor.torch_patches.table import PATCHES
from tests.project_file import PROJECT, ROOT
from tests.written_out import PAGES


def _said(page: str) -> str:
    """The text of a page in one line, without what was true of older versions."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return " ".join(text.partition("\n## [0.3.0]")[0].split())


def _number(page: str, pattern: str) -> int:
    """The number that a test writes into a page."""
    (found,) = re.findall(pattern, _said(page))
    return int(found)


class Fact(NamedTuple):
    """What is true, how it is said (the group is the fact), and where it has to be."""

    is_true: str
    said: str
    pages: tuple[str, ...]


_README, _INSTALLATION, _VERSIONS, _GPU = (
    "README.md",
    "docs/installation.md",
    "docs/versions.md",
    "docs/gpu.md",
)
_MISTAKES = _number("docs/is_my_masking_right.md", r"Of (\d+) programs with a mistake")
_CASES = re.findall(r"(?<=\| )[\w.]+ \| \d\S* \| (\d+) \|", _said("docs/proof.md"))
_MODELS = [_number("docs/in_the_wild.md", rf"\*\*(\d+) {what}\*\*") for what in ("architectures", "models")]
_LEAKS = _number("docs/in_the_wild.md", r"examinations: (\d+) with a leak")
_QUESTIONS = len(list((ROOT / "docs/how_do_i").glob("*.md"))) - 1
_NAMES = {"torch": "PyTorch", "numpy": "NumPy", "numba": "Numba"}
_DEPENDENCIES = [re.split(r"[<>=!]", line)[0] for line in PROJECT["dependencies"]]

FACTS = {
    # To be updated after a run of the tests on a GPU, with the next one.
    "the run on a GPU": Fact(
        "once on a GPU (NVIDIA H200, 28 November 2026); later changes have not been run on one",
        r"The tests have run (once on a GPU .*?)(?=\.| \(\[)",
        (_README, _INSTALLATION, _GPU),
    ),
    "the date of that run": Fact("28 November 2026", r"\*\*The run\*\*, on (.*?) \(", (_GPU,)),
    "values from which formulas are compiled": Fact(
        f"{LARGE:,}", r"from ([\d,]+) values on\)|limit of ([\d,]+) values", (_GPU,)
    ),
    "Pythons": Fact(
        f"{versions.PYTHONS[0]}-{versions.PYTHONS[-1]}",
        r"Python(?: \|)? (3\.\d+(?:-| to )3\.\d+)",
        (_README, _INSTALLATION),
    ),
    "the oldest Python": Fact(
        versions.PYTHONS[0], r"Python (3\.\d+) or newer|needs only Python (3\.\d+)\+", (_README,)
    ),
    "PyTorches": Fact(
        f"{versions.TORCH_MINORS[0]}-{versions.TORCH_MINORS[-1]}",
        r"PyTorch(?: \|)? (2\.\d+(?:-| to )2\.\d+)",
        (_README, _INSTALLATION),
    ),
    "the PyTorch of XLA": Fact(
        versions.TORCH_OF_XLA,
        r"(2\.\d+)(?: only)? for PyTorch/XLA|until PyTorch/XLA, last released for (2\.\d+)",
        (_README, _INSTALLATION, _VERSIONS),
    ),
    "dependencies": Fact(
        ", ".join(_NAMES.get(name, name) for name in _DEPENDENCIES),
        r"depends on ((?:\w+, )+\w+ and \w+)",
        (_README, _INSTALLATION),
    ),
    "functions of PyTorch that are replaced": Fact(
        str(len(PATCHES)), r"replaces or registers (\d+) functions", (_INSTALLATION,)
    ),
    "questions, about": Fact(
        str(round(_QUESTIONS, -1)),
        r"(\w+ty) questions",
        (_README, "docs/tutorial.md", ".github/ISSUE_TEMPLATE/config.yml"),
    ),
    "mistakes of the corpus": Fact(
        str(_MISTAKES), r"\[(\d+) mistakes\]|(\d+) programs with a mistake", (_README,)
    ),
    "models": Fact(str(sum(_MODELS)), r"\[(\d+) models\]", (_README,)),
    "leaks in models": Fact(str(_LEAKS), r"(\d+) leaks", (_README,)),
    "thousands of cases compared": Fact(
        f"{sum(map(int, _CASES)) // 1000},000", r"([\d,]+) \[cases\]", (_README,)
    ),
    "lines with goals": Fact("528", r"of (\d+) as fast as by hand", (_README,)),
}
_WORDS = {"twenty": "20", "thirty": "30", "forty": "40", "fifty": "50", "sixty": "60"}


def _plain(text: str) -> str:
    """A range, a list and a number, however they are written."""
    return _WORDS.get(text.lower(), text.replace(" to ", "-").replace(" and ", ", "))


@pytest.mark.every
@pytest.mark.parametrize("name", FACTS)
def test_pages_say_what_is_true(name: str) -> None:
    fact = FACTS[name]
    pages = {page.relative_to(ROOT).as_posix() for page in PAGES if "decisions" not in page.parts} | set(
        fact.pages
    )
    found = {
        page: {
            _plain(next(filter(None, groups)))
            for groups in (match.groups() for match in re.finditer(fact.said, _said(page)))
        }
        for page in pages
    }
    assert {page: said for page, said in found.items() if said - {fact.is_true}} == {}
    assert [page for page in fact.pages if not found[page]] == [], "they do not say it"


def test_lines_with_goals_are_those_of_the_sweep() -> None:
    shapes = [shape for shape in sweep.SHAPES if sweep.math.prod(shape) >= sweep.LEAST]
    kept = (sweep.KEPT / "sweep.csv").read_text(encoding="utf-8").splitlines()[1:]
    names = {"x".join(map(str, shape)) for shape in shapes}
    assert str(sum(line.split(",")[1] in names for line in kept)) == FACTS["lines with goals"].is_true
