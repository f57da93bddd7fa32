"""Rules with a signature of their own, and torch's synonyms for argument names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: numpy's names, which torch accepts too.
SYNONYMS = {"axis": "dim", "keepdims": "keepdim", "x": "input", "self": "input"}


#: The signature of a body, which takes a call as it is.
BODY = ("function", "args", "kwargs")


def named(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Make a body of a rule that has torch's signature, whichever spelling of the function was called.

    If its first parameter is ``function``, it is handed the spelling, too. A body is returned as it is.
    """
    code = rule.__code__
    if code.co_varnames[: code.co_argcount] == BODY:
        return rule
    asks = code.co_varnames[:1] == ("function",)

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs:
            kwargs = {SYNONYMS.get(key, key): value for key, value in kwargs.items()}
        return rule(function, *args, **kwargs) if asks else rule(*args, **kwargs)

    return body


def bound(names: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by torch's names for them, in the order of ``names``; synonyms are translated."""
    called = {SYNONYMS.get(key, key): value for key, value in kwargs.items()}
    return paired(names.split(), args) | called


def paired(names: Sequence[str], args: Sequence[Any]) -> dict[str, Any]:
    """The arguments that there are under the first of ``names``."""
    return dict(zip(names, args, strict=False))
