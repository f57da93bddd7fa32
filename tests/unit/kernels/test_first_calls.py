"""Compiling takes seconds on the first call; that is said once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numba
import pytest
from numba.core import event

from maskgrad.kernels.cpu import first_calls

EVENT: Any = event
NJIT: Any = numba.njit


@pytest.fixture
def compile_in() -> Iterator[Callable[..., None]]:
    def compiled(module: str, patience: float = 0.0) -> None:
        told.patience = patience

        def inner(x: int) -> int:
            return x + 1

        inner.__module__ = module
        called = NJIT(inner)

        def outer(x: int) -> int:
            return int(called(x)) * 2

        outer.__module__ = module
        assert NJIT(outer)(3) == 8

    told = first_calls._Told()
    EVENT.register("numba:compile", told)
    yield compiled
    EVENT.unregister("numba:compile", told)


def test_it_is_said_once(compile_in: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    compile_in("maskgrad.kernels.somewhere")
    compile_in("maskgrad.kernels.somewhere")
    said = [record for record in caplog.records if record.name == "maskgrad"]
    assert len(said) == 1
    assert "maskgrad warmup" in said[0].getMessage()


def test_what_others_compile_is_not_ours(
    compile_in: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    compile_in("somebody.else")
    assert not caplog.records


def test_short_waits_are_not_worth_a_word(
    compile_in: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    compile_in("maskgrad.kernels.somewhere", patience=1e9)
    assert not caplog.records
