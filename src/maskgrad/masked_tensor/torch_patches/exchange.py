"""Puts a function in the place of another, under all the names that this one has."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

__all__ = ["exchange"]


def exchange(path: str, other: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put ``other(original)`` in the place of the function or method at ``path``, under all names it has already.

    A package may have been imported before us: its modules then have the function under names of their own.
    """
    module, owner, name = _found(path)
    original = getattr(owner, name)
    new = other(original)
    if inspect.isfunction(original):
        new = _among_its_names(original, new)
    setattr(owner, name, new)
    if owner is module:
        package = module.__name__.partition(".")[0]
        for known, loaded in list(sys.modules.items()):
            if known.partition(".")[0] == package:
                names = [key for key, value in list(vars(loaded).items()) if value is original]
                for key in names:
                    setattr(loaded, key, new)


def _among_its_names(original: FunctionType, new: Callable[..., Any]) -> Callable[..., Any]:
    """``new``, for which TorchScript compiles the source of the original, with the names of its module."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return new(*args, **kwargs)

    found = FunctionType(function.__code__, original.__globals__, closure=function.__closure__)
    return functools.wraps(original)(found)


def _found(path: str) -> tuple[Any, Any, str]:
    """The module, the module or class within it, and the name there; of a module that is loaded."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        if ".".join(parts[:length]) in sys.modules:
            module = importlib.import_module(".".join(parts[:length]))
            return module, functools.reduce(getattr, parts[length:-1], module), parts[-1]
    raise ModuleNotFoundError(path)
