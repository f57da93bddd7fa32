"""Rules with a signature of their own, and torch's synonyms for argument names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: numpy's names, which torch accepts too.
SYNONYMS = {"axis": "dim", "keepdims": "keepdim", "x": "input", "self": "input"}


def named(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Make a body of a rule that has torch's signature, whichever spelling of the function was called."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs:
            kwargs = {SYNONYMS.get(key, key): value for key, value in kwargs.items()}
        return rule(*args, **kwargs)

    return body


def bound(names: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by torch's names for them, in the order of ``names``; synonyms are translated."""
    called = {SYNONYMS.get(key, key): value for key, value in kwargs.items()}
    return paired(names.split(), args) | called


def paired(names: Sequence[str], args: Sequence[Any]) -> dict[str, Any]:
    """The arguments that there are under the first of ``names``."""
    return dict(zip(names, args, strict=False))
