"""Turns pages that are written for GitHub into pages of Sphinx: links within the built pages, contents, keywords."""

from __future__ import annotations

import os
import re
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
#: Where the built pages are published. Links to the reference lead there, which is made when pages are built.
PUBLISHED = "https://maskgrad.github.io/maskgrad/"
#: Files that are pages of their own once built.
BUILT = {
    ROOT / "CHANGELOG.md": DOCS / "generated" / "changelog.md",
    ROOT / "CONTRIBUTING.md": DOCS / "generated" / "contributing.md",
    ROOT / "examples" / "flights" / "README.md": DOCS / "generated" / "flights.md",
    DOCS / "tour.ipynb": DOCS / "generated" / "tour.md",
}
_LINK = re.compile(r"\]\(([^()\s#]+)(#[^()\s]*)?\)")
_KEYWORDS = re.compile(r"^<!-- keywords: (.*?) -->$", re.MULTILINE)
_TOCTREE = re.compile(r"<!-- toctree(?:: (.*?))? -->\n(.*?)(?=\n\n|\Z)", re.DOTALL)


def relinked(text: str, at: Path, to: Path) -> str:
    """Return the Markdown of the file ``at`` with the links that it needs as the page ``to``."""

    def link(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        if target.startswith(PUBLISHED):
            if anchor:
                return f"]({anchor[1:]})"  # a name of the reference
            path = DOCS / target.removeprefix(PUBLISHED).replace(".html", ".rst")
        else:
            path = Path(os.path.normpath(at.parent / target))
        if ("://" in target and not target.startswith(PUBLISHED)) or not path.exists():
            return found[0]
        return f"]({os.path.relpath(BUILT.get(path, path), to.parent)}{anchor})"

    return _LINK.sub(link, text)


def toctrees(text: str) -> str:
    """Add a table of contents for the sidebar, of each list of links under ``<!-- toctree: CAPTION -->``."""

    def hidden(found: re.Match[str]) -> str:
        caption = f":caption: {found[1]}\n" if found[1] else ""
        pages = "\n".join(target for target, _ in _LINK.findall(found[2]))
        return f"{found[2]}\n\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n{caption}\n{pages}\n```"

    return _TOCTREE.sub(hidden, text)


def keywords(text: str) -> str:
    """Enter the words of ``<!-- keywords: a, b -->`` into the index, where the search finds them first."""
    return _KEYWORDS.sub(
        lambda found: (
            "```{index} " + ", ".join(f"! {word.strip()}" for word in found[1].split(",")) + "\n```"
        ),
        text,
    )


def write_pages_from_outside() -> None:
    """Write the pages that are made of Markdown outside of this folder."""
    for file, page in BUILT.items():
        if file.suffix == ".md":
            page.write_text(relinked(file.read_text(encoding="utf-8"), file, page), encoding="utf-8")
