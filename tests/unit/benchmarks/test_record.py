from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import record
from benchmarks.goals import judged
from benchmarks.results import read_folder, with_provenance, write_rows
from tests.unit.benchmarks.test_results import ROW

FACTS = {
    "date": "2026-11-20 08:58",
    "threads": "2",
    "cores": "2",
    "cpu": "Abacus",
    "torch": "2.13.0",
    "python": "3.11.7",
    "commit": "",
    "load": "",
}


def test_the_pages_show_what_the_csv_files_say() -> None:
    """A number in a page is not typed by hand; `python -m benchmarks.record` writes them anew."""
    for page, text in record.pages(read_folder(record.RESULTS)).items():
        committed = page.read_text(encoding="utf-8")
        if page == record.TABLES or record.BEGIN in committed:
            assert committed == text, f"{page.name} is not what benchmarks/results says"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own, with pages that have a region for the table."""
    monkeypatch.setattr(record, "ROOT", tmp_path)
    for name in ("PAGE", "GOALS", "COMPILATION"):
        path = tmp_path / f"{name}.md"
        path.write_text(
            "before\n<!-- benchmark table: old -->\nold\n<!-- end of benchmark table -->\nafter\n"
        )
        monkeypatch.setattr(record, name, path)
    monkeypatch.setattr(record, "TABLES", tmp_path / "tables.md")
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(record, "DRAWN", tmp_path / "pictures")
    return tmp_path


def test_a_report_becomes_results_tables_and_pictures(repository: Path) -> None:
    report = repository / "report"
    report.mkdir()
    rows = [replace(ROW, note=""), replace(ROW, note="", peer="torch.masked", ratio=25.0, median_ms=81.25)]
    graphs = [replace(row, family="compiled", peer=row.peer.replace("torch.masked", "dense")) for row in rows]
    for family in (rows, graphs):
        write_rows(report / f"{family[0].family}.csv", with_provenance(judged(family), FACTS))
    record.main([str(report)])
    assert len(read_folder(repository / "results")) == 4
    goal = "| reductions: mean(1), forward | at least 20 times as fast as torch.masked | 25 | ✓ |"
    head = "| operation | work | shape | specified | dtype | maskgrad (ms) | dense |"
    first = "| mean of each row, 4096 × 4096, half of it missing | `torch.masked` | 25 times as fast | ✓ |"
    for page, line in (
        ("PAGE.md", first),
        ("GOALS.md", goal),
        ("COMPILATION.md", head),
    ):
        text = (repository / page).read_text()
        assert text.startswith(f"before\n{record.BEGIN}\n")
        assert text.endswith(f"{record.END}\nafter\n")
        assert line in text
        assert "old" not in text
    assert "## reductions" in (repository / "tables.md").read_text()
    assert (repository / "pictures" / "forward.png").is_file()
    again = record.pages(read_folder(repository / "results"))
    assert all(path.read_text() == text for path, text in again.items())


def test_an_empty_report_changes_nothing(repository: Path) -> None:
    with pytest.raises(SystemExit, match="run `make bench` first"):
        record.main([str(repository)])
    assert "old" in (repository / "PAGE.md").read_text()


def test_a_damaged_report_changes_nothing(repository: Path) -> None:
    (repository / "bad.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="no file of `make bench`"):
        record.main([str(repository)])
    assert not (repository / "results").exists()
