"""Exporting without what takes time and tests nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exporter import one_registry


@pytest.fixture(autouse=True, scope="module")
def _one_registry() -> Iterator[None]:
    with one_registry():
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test writes its file."""
    return tmp_path / "model.onnx"
