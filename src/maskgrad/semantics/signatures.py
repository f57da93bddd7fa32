"""The arguments of a call: torch's names for them, and masked ones that must be plain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from maskgrad.errors import UnspecifiedValueError
from maskgrad.mode import TRACED, mode
from maskgrad.semantics.entries import Entries

#: numpy's names, which torch also accepts.
SYNONYMS = {"axis": "dim", "keepdims": "keepdim", "x": "input", "self": "input"}


#: The signature of a body, which gets the unchanged call.
BODY = ("function", "args", "kwargs")


def named(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Make a body from a rule with torch's signature, perhaps after ``function``; a body is returned unchanged."""
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
    """The given arguments, under the first of ``names``."""
    return dict(zip(names, args, strict=False))


def plain_argument(argument: Any) -> Any:
    """The argument, or its values if it is masked, in lists too; on an accelerator this waits for the device.

    Raises:
        UnspecifiedValueError: an entry is unspecified, or a graph is being traced, where this is unknown.
    """
    if type(argument) in (list, tuple):
        return type(argument)([plain_argument(part) for part in argument])
    if not isinstance(argument, Entries):
        return argument
    if mode() in TRACED:
        raise UnspecifiedValueError(
            "this argument must be fully specified, which is unknown for a MaskedTensor in a graph; "
            "pass a plain tensor, x.filled(value)"
        )
    if not bool(argument.mask.all()):
        raise UnspecifiedValueError(
            "this argument must be fully specified, got a MaskedTensor with unspecified entries; "
            "fill them, x.filled(value), or drop them, x.compressed()"
        )
    return argument.values if argument.values.ndim else argument.values.item()


def plain_arguments(args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The same for all arguments except the first."""
    return [plain_argument(a) for a in args], {name: plain_argument(a) for name, a in kwargs.items()}
