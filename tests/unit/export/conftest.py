"""Exporting without what takes time and tests nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.exporter import one_registry


@pytest.fixture(autouse=True, scope="module")
def _one_registry() -> Iterator[None]:
    with one_registry():
        yield
