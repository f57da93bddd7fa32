from __future__ import annotations

from benchmarks import record
from benchmarks.results import read_folder


def test_the_pages_show_what_the_csv_files_say() -> None:
    """A number in a page is not typed by hand; `python -m benchmarks.record` writes them anew."""
    for page, text in record.pages(read_folder(record.RESULTS)).items():
        committed = page.read_text(encoding="utf-8")
        if page == record.TABLES or record.BEGIN in committed:
            assert committed == text, f"{page.name} is not what benchmarks/results says"
