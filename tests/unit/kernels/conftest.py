"""The compiled loops run on a team of threads here: what a race would change must not depend on who runs the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

#: What is about loops, and the bits that they keep.
LOOPS = ("test_threads.py", "test_selection.py", "test_updates.py", "test_invariant.py", "test_attention.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in LOOPS and item.path.parent.name == "kernels":
            item.add_marker(pytest.mark.on_cpu)


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """Processes of pytest-xdist have one thread each: see conftest.py at the top."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(before, 2))
    yield
    torch.set_num_threads(before)
