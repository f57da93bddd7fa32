"""The notebook of the docs prints what is kept in it, and runs without anything that only Jupyter has."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import notebook

DOCS = notebook.TOUR.parent


def _without_counts(outputs: list[dict]) -> list[dict]:
    return [{**output, "execution_count": None} if "data" in output else output for output in outputs]


@pytest.mark.every
def test_the_tour_prints_what_is_kept_in_it() -> None:
    cells = notebook.read()
    kept = [_without_counts(cell["outputs"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(kept) >= 8
    with torch.random.fork_rng():
        assert notebook.run(cells) == kept


def test_its_page_has_every_cell_and_links_to_pages_that_exist() -> None:
    cells = notebook.read()
    page = notebook.page(cells)
    for cell in cells:
        if cell["cell_type"] == "code":
            assert notebook.source_of(cell) in page
    links = re.findall(r"\]\((\.\./[^)]+)\)", page)
    assert len(links) >= 2
    assert all((DOCS / "generated" / link).resolve().exists() for link in links)
