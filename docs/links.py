"""Follows every link within the built pages, anchors too: ``python docs/links.py`` after a build."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

BUILT = Path(__file__).parent / "_build" / "html"


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        """Read what the parser has met."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def main() -> int:
    """Follow all links, and print those that lead nowhere."""
    pages = {path: Page(path) for path in BUILT.rglob("*.html")}
    followed, broken = 0, []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            followed += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else {parts.fragment}
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append(f"{path.relative_to(BUILT)}: {link}")
    sys.stdout.write(
        "\n".join([*broken, f"{followed} links in {len(pages)} pages, {len(broken)} broken"]) + "\n"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
