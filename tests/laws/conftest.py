"""PyTorch's notices about its own samples are no errors here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.laws.notices import NOTICES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for message in NOTICES:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{message.replace(':', '.')}:UserWarning"))
