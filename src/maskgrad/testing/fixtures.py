"""A pytest plugin.

``pytest -p maskgrad.testing.fixtures``, or ``pytest_plugins = ["maskgrad.testing.fixtures"]`` in ``conftest.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from maskgrad.doctor import Watch, examine, watch
from maskgrad.testing.invariance import (
    assert_accumulation_invariant,
    assert_causal,
    assert_documents_apart,
    assert_garbage_invariant,
    assert_padding_invariant,
    assert_ranks_invariant,
)

__all__ = [
    "accumulation_invariant", "causal", "documents_apart", "garbage_invariant", "mask_doctor", "padding_invariant",
    "ranks_invariant", "watched_steps",
]  # fmt: skip


@pytest.fixture
def mask_doctor() -> Callable[..., Any]:
    """:func:`maskgrad.doctor.examine`."""
    return examine


def _given(assertion: Callable[..., None]) -> Any:
    name = assertion.__name__.removeprefix("assert_")
    return pytest.fixture(name=name)(lambda: assertion)


padding_invariant = _given(assert_padding_invariant)
garbage_invariant = _given(assert_garbage_invariant)
accumulation_invariant = _given(assert_accumulation_invariant)
ranks_invariant = _given(assert_ranks_invariant)
documents_apart = _given(assert_documents_apart)
causal = _given(assert_causal)


@pytest.fixture
def watched_steps() -> Iterator[Watch]:
    """Watch the training steps of the test, and fail it if padding leaked in one, or if none was examined."""
    with watch() as watched:
        yield watched
    # a test may make one step, in which no other length is tried
    left = [why for why in watched.report.unexamined if watched.steps > 1 or "padding-length" not in why]
    if watched.report.findings or left:
        pytest.fail(str(watched.report), pytrace=False)
