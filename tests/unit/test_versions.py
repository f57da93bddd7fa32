"""One version of each thing: the table, pyproject.toml, the changelog and the page agree."""

from __future__ import annotations

import importlib.metadata
import re
import runpy
import warnings

import pytest
import torch

import maskgrad
from maskgrad import versions
from maskgrad.documents.aggregation import OLD_NAMES
from maskgrad.instead import INSTEAD
from tests.project_file import EXTRAS, PROJECT, PYPROJECT, ROOT


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.15.0a0+git123", "2.15.0"),
        ("2.13.0+cpu", "2.13.0"),
        ("2.16.0.dev20270101+cu130", "2.16.0"),
        ("v3", "3"),
        ("unknown", "unknown"),
        ("", ""),
        (None, "None"),
    ],
)
def test_the_release_of_a_build(version: object, expected: str) -> None:
    assert versions.release(version) == expected


@pytest.mark.parametrize(
    ("version", "other", "expected"),
    [
        ("2.9.1", "2.12", True),
        ("2.12", "2.12.0", False),
        ("2.12.0", "2.12", False),
        ("2", "2.0", False),
        ("2", "2.0.1", True),
        ("1.26.4", "2.0", True),
        ("10.0", "9.1", False),
        ("2.0.0a1", "2.0", True),
        ("2.0rc1", "2.0", True),
        ("2.0.post1", "2.0", False),
        ("2.0+local", "2.0", False),
        ("unknown", "2.0", False),
    ],
)
def test_which_version_comes_before(version: str, other: str, expected: bool) -> None:
    assert versions.is_before(version, other) is expected


def _rows(page: str) -> list[list[str]]:
    """The cells of all tables of a page."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


#: The version that a clone without tags is on the way to.
NEXT = PYPROJECT["tool"]["hatch"]["version"]["fallback-version"].removesuffix(".dev0")


def test_the_version_of_the_library_is_its_tag() -> None:
    assert "version" in PROJECT["dynamic"]
    assert PYPROJECT["tool"]["hatch"]["version"]["source"] == "vcs"
    assert maskgrad.__version__ == versions.VERSION == importlib.metadata.version("maskgrad")
    written = [
        path for path in (ROOT / "src").rglob("*.py") if '__version__ = "' in path.read_text(encoding="utf-8")
    ]
    assert written == []


def test_a_folder_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert runpy.run_path(versions.__file__)["VERSION"] == "0+unknown"


def test_the_changelog_begins_with_the_next_version() -> None:
    headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == NEXT


def _deprecated() -> list[list[str]]:
    return [row for row in _rows("versions.md") if len(row) == 4 and row[0].startswith("`")]


@pytest.mark.parametrize("row", _deprecated(), ids=lambda row: row[0])
def test_a_deprecated_name_works_for_one_minor_version_and_warns(row: list[str]) -> None:
    old, new = row[0].strip("`"), row[1].strip("`")
    since, removed, now = (tuple(map(int, text.split(".")[:2])) for text in (row[2], row[3], NEXT))
    assert removed == (since[0], since[1] + 1)
    assert since <= now < removed, "remove the name, and say so in the changelog"
    names = {"mg": maskgrad, "losses": maskgrad.masked(torch.ones(2, 2)), "model": torch.nn.Linear(1, 1)}
    with pytest.warns(DeprecationWarning, match=re.escape(re.findall(r'"[^"]*"', new)[-1].strip('"'))):
        eval(old, names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eval(new, names)


def test_the_changelog_says_what_to_write_for_every_removed_name() -> None:
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    table = "".join(line for line in newest.splitlines() if line.startswith("| "))
    removed = [name for module, names in INSTEAD.items() if module.startswith("maskgrad") for name in names]
    assert len(removed) > 40
    assert [name for name in removed if not re.search(rf"\b{name}\b", table)] == []


def test_the_page_has_all_that_is_deprecated() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")}
    warning = {path.name for path, text in sources.items() if re.search(r"warn\(.*DeprecationWarning", text)}
    assert warning == {"aggregation.py"}
    assert {row[0].split('"')[1] for row in _deprecated()} == set(OLD_NAMES)


def test_what_is_always_installed() -> None:
    minors = [f"2.{minor}" for minor in range(9, 13)]
    assert minors[0] == versions.TORCH_OF_XLA
    assert minors[-1] == versions.TORCH_MINORS[0]
    left_out = ",".join(f"!={minor}.*" for minor in minors[1:-1])
    assert PROJECT["dependencies"] == [
        f"torch>={versions.TORCH_OF_XLA},{left_out}",
        f"numpy>={versions.NUMPY}",
        f"numba>={versions.NUMBA}",
        f"packaging>={versions.PACKAGING}",
        f"typer>={versions.TYPER}",
        f"rich>={versions.RICH}",
    ]


def _requirement(name: str) -> str:
    package = versions.OPTIONAL[name]
    upper = f",<{package.below}" if package.below else ""
    return f"{package.distribution or name}>={package.least}{upper}"


@pytest.mark.parametrize("name", versions.OPTIONAL)
def test_extras_ask_for_what_the_table_says(name: str) -> None:
    asking = {
        extra
        for extra, requirements in EXTRAS.items()
        if _requirement(name) in [requirement.partition(";")[0] for requirement in requirements]
    }
    assert asking == set(versions.OPTIONAL[name].extras)


def test_the_table_has_all_that_users_extras_ask_for() -> None:
    of_users = [
        requirement
        for extra in EXTRAS
        if extra not in {"dev", "docs", "dist", "ecosystem", "mutants", "wild"}
        for requirement in EXTRAS[extra]
    ]
    assert {requirement.partition(";")[0] for requirement in of_users} == set(
        map(_requirement, versions.OPTIONAL)
    )


def test_the_versions_of_python() -> None:
    prefix = "Programming Language :: Python :: 3."
    named = [entry.rpartition(" ")[2] for entry in PROJECT["classifiers"] if entry.startswith(prefix)]
    assert tuple(named) == versions.PYTHONS
    assert PROJECT["requires-python"] == f">={versions.PYTHONS[0]}"


def test_no_link_of_the_readme_is_left_relative_in_the_package_index() -> None:
    hook = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for substitution in hook["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    assert '="https://raw.githubusercontent.com/maskgrad/maskgrad/main/docs/pictures/' in text
    assert not re.findall(r"\]\((?!https://)[^)]*\)|src(?:set)?=\"(?!https://)", text)


def test_the_page_has_what_is_always_needed() -> None:
    said = [
        (package, versions_)
        for package, versions_, *_ in _rows("versions.md")
        if package in {"PyTorch", "Python", "NumPy", "Numba", "packaging", "typer", "rich"}
    ]
    assert said == [
        ("PyTorch", f"{', '.join(versions.TORCH_MINORS)}: in full"),
        ("PyTorch", f"{versions.TORCH_OF_XLA}: as far as PyTorch/XLA needs it"),
        ("Python", ", ".join(versions.PYTHONS)),
        ("NumPy", f"{versions.NUMPY} or newer"),
        ("packaging", f"{versions.PACKAGING} or newer"),
        ("Numba", f"{versions.NUMBA} or newer"),
        ("typer", f"{versions.TYPER} or newer"),
        ("rich", f"{versions.RICH} or newer"),
    ]
    short = f"on {versions.PYTHONS[0]} the newest is {versions.newest_torch(versions.PYTHONS[0])}"
    assert any(short in cell for row in _rows("versions.md") for cell in row)


def test_the_page_has_what_parts_need() -> None:
    expected = []
    for name, package in versions.OPTIONAL.items():
        upper = f", before {package.below}" if package.below else ""
        note = f": {package.note}" if package.note else ""
        expected.append([name, ", ".join(package.extras), f"{package.least} or newer{upper}{note}"])
    assert [row for row in _rows("versions.md") if row[0] in versions.OPTIONAL] == expected


def test_the_page_is_about_this_version() -> None:
    minor = ".".join(NEXT.split(".")[:2])
    assert f"maskgrad {minor} runs with" in (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
