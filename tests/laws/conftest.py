"""PyTorch's notices about its own samples are no errors here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.laws.any_type.notices import IGNORED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here, mark = Path(__file__).parent, pytest.mark.filterwarnings(*IGNORED)
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(mark)
