"""In which order the records are tried together: the first of each family, and then the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from maskgrad.semantics.registry import OPERATIONS

__all__ = ["family_of", "groups_of"]

FAMILIES = {operation.name: operation.family for operation in OPERATIONS}


def family_of(name: str) -> str:
    return FAMILIES[name]


def groups_of(
    names: Sequence[str], size: int, mark: pytest.MarkDecorator, by: Callable[[str], object] | None = None
) -> list[Any]:
    """Parameters of a test: ``size`` names at a time, all of one ``by`` if that is given.

    The first of each family come first; they represent the others, which have the ``mark`` in addition.
    """
    first = {family_of(name): name for name in reversed(names)}
    representatives = [name for name in names if first[family_of(name)] == name]
    others: dict[object, list[str]] = {}
    for name in names:
        if first[family_of(name)] != name:
            others.setdefault(by(name) if by else None, []).append(name)
    marked = [group for group_names in others.values() for group in _chunks(group_names, size)]
    return [
        *(pytest.param(group, id=_id(group)) for group in _chunks(representatives, size)),
        *(pytest.param(group, id=_id(group), marks=mark) for group in marked),
    ]


def _chunks(names: list[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(names[at : at + size]) for at in range(0, len(names), size)]


def _id(group: tuple[str, ...]) -> str:
    return f"{group[0]}…{group[-1]}"
