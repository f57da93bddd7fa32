"""PyTorch's notices about its own samples are no errors here, nor are those of its compiler about itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.laws.notices import NOTICES

#: What torch.compile says of itself.
OF_THE_COMPILER = (
    "ignore:.*should not be instantiated:DeprecationWarning",
    "ignore:.torch.jit.script.* is deprecated:DeprecationWarning",
    # and torch.func.vmap, where it loops; what it maps over is not contiguous
    "ignore:There is a performance drop because we have not yet implemented the batching rule:UserWarning",
    "ignore:torch.searchsorted.*non-contiguous:UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for message in NOTICES:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{message.replace(':', '.')}:UserWarning"))
            for notice in OF_THE_COMPILER:
                item.add_marker(pytest.mark.filterwarnings(notice))
