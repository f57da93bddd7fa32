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
)

__all__ = [
    "accumulation_invariant", "causal", "documents_apart", "garbage_invariant", "mask_doctor", "padding_invariant",
    "watched_steps",
]  # fmt: skip


@pytest.fixture
def mask_doctor() -> Callable[..., Any]:
    """:func:`maskgrad.doctor.examine`."""
    return examine


@pytest.fixture
def padding_invariant() -> Callable[..., None]:
    """:func:`maskgrad.testing.assert_padding_invariant`."""
    return assert_padding_invariant


@pytest.fixture
def garbage_invariant() -> Callable[..., None]:
    """:func:`maskgrad.testing.assert_garbage_invariant`."""
    return assert_garbage_invariant


@pytest.fixture
def accumulation_invariant() -> Callable[..., None]:
    """:func:`maskgrad.testing.assert_accumulation_invariant`."""
    return assert_accumulation_invariant


@pytest.fixture
def documents_apart() -> Callable[..., None]:
    """:func:`maskgrad.testing.assert_documents_apart`."""
    return assert_documents_apart


@pytest.fixture
def causal() -> Callable[..., None]:
    """:func:`maskgrad.testing.assert_causal`."""
    return assert_causal


@pytest.fixture
def watched_steps() -> Iterator[Watch]:
    """Watch the training steps of the test, and fail it if padding leaked in one, or if none was examined."""
    with watch() as watched:
        yield watched
    # a test may make one step, in which no other length is tried
    left = [why for why in watched.report.unexamined if watched.steps > 1 or "padding-length" not in why]
    if watched.report.findings or left:
        pytest.fail(str(watched.report), pytrace=False)
