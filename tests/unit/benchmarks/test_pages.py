"""A number in a page is not typed by hand: the pages show what the committed results say."""

from __future__ import annotations

import csv

import torch

from benchmarks import facts, record, sweep
from benchmarks.provenance import provenance
from benchmarks.results import read_folder
from benchmarks.wild.page import PAGE, RESULTS, read, tables


def test_pages_of_measurements() -> None:
    for page, text in record.pages(read_folder(record.RESULTS)).items():
        committed = page.read_text(encoding="utf-8")
        if page == record.TABLES or record.BEGIN in committed:
            assert committed == text, f"{page.name} is not what benchmarks/results says"
    with (sweep.KEPT / "sweep.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for page in sweep.PAGES:
        text = page.read_text(encoding="utf-8")
        assert sweep.BEGIN in text
        assert sweep.with_table(page, rows) == text
        assert all((sweep.KEPT / name).is_file() for name in ("sweep.png", "sweep-dark.png"))


def test_measured_facts_name_every_step_and_selections_agree() -> None:
    steps = [step for step in facts.steps() if not step.group.startswith("memory, 64")]
    page = facts.PAGE.read_text(encoding="utf-8")
    assert all(f"| {step.name} |" in page for step in steps)
    assert "| `x * 2` | 100 |" in facts.table(steps, [100.0] * len(steps), provenance())
    for group in {step.group for step in steps if step.group.startswith("replacing")}:
        where, *others = [step.call() for step in steps if step.group == group][:-1]
        for other in others:
            torch.testing.assert_close(other.view(torch.float32), where)


def test_the_doctor_on_other_peoples_models() -> None:
    assert PAGE.read() == tables(RESULTS)
    assert "not explained yet" not in tables(RESULTS)
    assert len({(row["name"], row.get("model")) for row in read(RESULTS)}) > 50
