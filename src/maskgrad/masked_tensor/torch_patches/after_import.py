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
        return
    if not _finder.waiting:
        sys.meta_path.insert(0, _finder)
    _finder.waiting.setdefault(name, []).append(call)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: lets the others find the module, and calls what waits for it once it is executed."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[], None]]] = {}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  (the protocol has more arguments than are needed)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        calls = self.waiting.pop(fullname, None)
        if calls is None:
            return None
        if not self.waiting:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for call in calls:
                call()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _Finder()
