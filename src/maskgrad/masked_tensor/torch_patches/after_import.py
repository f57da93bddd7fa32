"""Calls a function once a module has been imported, without importing it: that would cost a second with Dynamo."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

__all__ = ["after_import"]


def after_import(name: str, call: Callable[[], None]) -> None:
    """Call ``call`` now if the module ``name`` has been imported, else as soon as it is."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Finder(name, call))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: lets the others find the module, and calls the function once it is executed."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self.name, self.call = name, call

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  (the protocol has more arguments than are needed)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute, call = spec.loader.exec_module, self.call

        def exec_module(module: ModuleType) -> None:
            execute(module)
            call()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
