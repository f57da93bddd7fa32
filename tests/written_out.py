"""Writes programs and tables into the pages, which then read well on GitHub too: ``python -m tests.written_out``.

``<!-- file: programs/a.py -->`` … ``<!-- end of file -->`` holds that file: code in a fence, Markdown as it is. Other
regions, ``<!-- NAME: how it is made -->`` … ``<!-- end of NAME -->``, hold the tables that tests write.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.project_file import ROOT

__all__ = ["DOCS", "PAGES", "Region", "with_files"]

DOCS = ROOT / "docs"
#: All Markdown that people read in the repository.
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("examples/*/README.md"),
        *(
            page
            for page in DOCS.rglob("*.md")
            if page.relative_to(DOCS).parts[0] not in {"_build", "generated"}
        ),
    ]
)
# Not `python`: the examples of a page are run by conftest.py, these programs by tests of their own.
_FENCES = {".py": "```py\n{}```", ".txt": "```text\n{}```", ".md": "\n{}"}


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name}: ([^>]*?) -->\n)(.*?)(<!-- end of {name} -->)", re.DOTALL)


class Region(NamedTuple):
    """The part of a page that is written by a program."""

    page: str
    name: str

    def read(self) -> str:
        """Return the text between the two marks."""
        found = _pattern(self.name).search((DOCS / self.page).read_text(encoding="utf-8"))
        assert found is not None, (
            f"{self.page} has no `<!-- {self.name}: … -->`, `<!-- end of {self.name} -->`"
        )
        return found[3].strip() + "\n"

    def write(self, text: str) -> None:
        """Replace the text between the two marks."""
        page = DOCS / self.page
        filled = _pattern(self.name).sub(
            lambda found: f"{found[1]}\n{text.strip()}\n\n{found[4]}", page.read_text(encoding="utf-8")
        )
        page.write_text(filled, encoding="utf-8")


def with_files(page: Path) -> str:
    """Return the text of a page with the files that it names as they are now."""

    def filled(found: re.Match[str]) -> str:
        file = page.parent / found[2]
        text = _FENCES[file.suffix].format(file.read_text(encoding="utf-8"))
        return f"{found[1]}{text}\n{found[4]}"

    return _pattern("file").sub(filled, page.read_text(encoding="utf-8"))


def main() -> None:
    """Write the files into all pages that name some."""
    for page in PAGES:
        page.write_text(with_files(page), encoding="utf-8")


if __name__ == "__main__":
    main()
