"""The table of the page "With other libraries": each row has a verdict and what to write, each library its tests."""

from __future__ import annotations

from tests.project_file import ROOT

PAGE = (ROOT / "docs" / "with_other_libraries.md").read_text(encoding="utf-8")
VERDICTS = {"works", "one line", "refused", "**not caught**"}


def test_each_row_says_what_to_write_and_its_library_is_tested() -> None:
    _, _, *rows = PAGE.partition("## Results\n\n")[2].partition("\n\n")[0].splitlines()
    tests = {
        path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "tests/ecosystem").glob("test_*.py")
    }
    assert len(rows) > 80
    assert rows == sorted(rows, key=lambda row: row.split(" | ")[0].lower())
    for row in rows:
        library, _, verdict, way = (part.strip() for part in row.strip("|").split("|"))
        assert verdict in VERDICTS, row
        assert bool(way) == (verdict != "works"), row
        name = {"scikit-learn": "sklearn"}.get(library, library)
        assert any(name in text for text in tests.values()), row
