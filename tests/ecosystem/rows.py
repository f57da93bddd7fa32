"""What a test of this folder shows, as a row of the page "With other libraries".

A test declares its rows as decorators, with literal strings: ``table.py`` reads them from the source, so that the page
is written and checked where none of the packages is installed.

    @works("einops", "`rearrange`")
    @one_line("safetensors", "files", "`save_file(mg.interop.to_tensors({'x': x}), path)`")
    @refused("opacus", "`GradSampleModule`", "`mg.per_sample_grad`")
    def test_…
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["beware", "one_line", "refused", "works"]

_Test = TypeVar("_Test", bound=Callable[..., Any])


def works(library: str, what: str) -> Callable[[_Test], _Test]:
    """Right as it is written for plain tensors."""
    return _as_it_is


def one_line(library: str, what: str, line: str) -> Callable[[_Test], _Test]:
    """Right with ``line``."""
    return _as_it_is


def refused(library: str, what: str, way: str) -> Callable[[_Test], _Test]:
    """An error whose message names ``way``."""
    return _as_it_is


def beware(library: str, what: str, way: str) -> Callable[[_Test], _Test]:
    """Wrong, and nothing of ours is asked, so that it cannot be refused; ``way`` is right."""
    return _as_it_is


def _as_it_is(test: _Test) -> _Test:
    return test
