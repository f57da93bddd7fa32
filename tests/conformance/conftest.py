"""PyTorch's notices about its own samples are no errors here, nor are those of its compiler about itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.laws.any_type.notices import IGNORED

#: What torch.compile says of itself.
OF_THE_COMPILER = (
    "ignore:.*should not be instantiated:DeprecationWarning",
    # and torch.func.vmap, where it loops; what it maps over is not contiguous
    "ignore:There is a performance drop because we have not yet implemented the batching rule:UserWarning",
    "ignore:torch.searchsorted.*non-contiguous:UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here, mark = Path(__file__).parent, pytest.mark.filterwarnings(*IGNORED, *OF_THE_COMPILER)
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(mark)
