"""The pages read well where they lie, on GitHub, and not only once they are built."""

from __future__ import annotations

import re
import runpy
from operator import attrgetter
from pathlib import Path

import maskgrad as mg
from tests.project_file import EXTRAS, PROJECT, ROOT
from tests.written_out import DOCS, PAGES, with_files

_OF_SPHINX = re.compile(r"^ *(?:```+|:::+)\{|\{[a-z:]+\}`[^`]", re.MULTILINE)


def _names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def test_programs_and_their_output_stand_in_the_pages() -> None:
    assert len(PAGES) > 150
    stale = _names([page for page in PAGES if with_files(page) != page.read_text(encoding="utf-8")])
    assert not stale, "write them anew with: python -m tests.written_out"


def test_no_page_has_what_only_sphinx_knows() -> None:
    assert _OF_SPHINX.search("```{toctree}\n")
    assert _OF_SPHINX.search("see {func}`maskgrad.align`")
    assert not _names([page for page in PAGES if _OF_SPHINX.search(page.read_text(encoding="utf-8"))])


def test_links_lead_to_files_of_the_repository() -> None:
    dead = []
    for page in PAGES:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
        dead += [(page.name, x) for x in links if "generated" in x or not (page.parent / x).is_file()]
    assert not dead


def test_every_name_in_the_pages_exists() -> None:
    for page in PAGES:
        if page.name != "CHANGELOG.md" and page.parent.name != "decisions":
            text = re.sub(r".*\bremoved in\b.*", "", page.read_text(encoding="utf-8"))
            for name in re.findall(r"\bmg\.(\w+(?:\.\w+)*)", text):
                attrgetter(name)(mg)  # an AttributeError says what is written instead


def test_at_least_twenty_searches_are_asked_after_each_build() -> None:
    """`make docs` asks them, of the built index."""
    searches = runpy.run_path(str(DOCS / "searches.py"))["SEARCHES"]
    assert len(searches) >= 20
    assert [page for page in searches.values() if not (DOCS / page).with_suffix(".md").is_file()] == []
    assert "docs/searches.py" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_published_pages_have_one_address() -> None:
    address = PROJECT["urls"]["Documentation"]
    assert f'PUBLISHED = "{address}"' in (DOCS / "plain_markdown.py").read_text(encoding="utf-8")
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for link in re.findall(r"\((https://maskgrad\.github\.io[^)]*)\)", text):
        assert link == address or link.startswith(f"{address}generated/api/")


def test_the_page_about_installation_names_every_extra() -> None:
    text = (DOCS / "installation.md").read_text(encoding="utf-8")
    assert {extra for extra in EXTRAS if f"`{extra}`" not in text} == set()
