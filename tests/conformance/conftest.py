"""PyTorch's notices about its own samples are no errors here, nor are those of its compiler about itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.laws.notices import IGNORED
from tests.oldest_torch import IS_OLDEST

#: What torch.compile says of itself.
OF_THE_COMPILER = (
    "ignore:.*should not be instantiated:DeprecationWarning",
    "ignore:.torch.jit.script.* is deprecated:DeprecationWarning",
    # and torch.func.vmap, where it loops; what it maps over is not contiguous
    "ignore:There is a performance drop because we have not yet implemented the batching rule:UserWarning",
    "ignore:torch.searchsorted.*non-contiguous:UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here, mark = Path(__file__).parent, pytest.mark.filterwarnings(*IGNORED, *OF_THE_COMPILER)
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(mark)


@pytest.fixture(autouse=True)
def _sizes_may_depend_on_data() -> Iterator[None]:
    """In the graphs of a newer PyTorch they may without a request."""
    if not IS_OLDEST:
        yield
        return
    import torch._dynamo

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield
