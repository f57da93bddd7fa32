"""Writes one page per public module, one entry per name in its ``__all__``: the reference cannot go stale."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

# In the order of the table of contents. A module that does not exist yet is left out.
PUBLIC_MODULES = [
    "maskgrad",
    "maskgrad.functional",
    "maskgrad.sparse",
    "maskgrad.optim",
    "maskgrad.optim.functional",
    "maskgrad.nn",
    "maskgrad.nn.functional",
    "maskgrad.amp",
    "maskgrad.distributed",
    "maskgrad.interop",
    "maskgrad.metrics",
    "maskgrad.integrations",
    "maskgrad.doctor",
    "maskgrad.testing",
    "maskgrad.export.onnx",
    "maskgrad.plot",
    "maskgrad.errors",
]


def write_api_pages(folder: Path) -> None:
    """Write the pages and their index into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.rst"):
        stale.unlink()
    modules = [importlib.import_module(name) for name in PUBLIC_MODULES if _exists(name)]
    for module in modules:
        (folder / f"{module.__name__}.rst").write_text(_page(module), encoding="utf-8")
    contents = "".join(f"   {module.__name__}\n" for module in modules)
    index = f"{_title('Reference')}.. toctree::\n   :maxdepth: 1\n\n{contents}"
    (folder / "index.rst").write_text(index, encoding="utf-8")


def _exists(name: str) -> bool:
    parent = name.rpartition(".")[0]
    return (not parent or _exists(parent)) and importlib.util.find_spec(name) is not None


def _title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n\n"


def _page(module: ModuleType) -> str:
    entries = [_entry(module, name) for name in getattr(module, "__all__", [])]
    return f"{_title(module.__name__)}.. automodule:: {module.__name__}\n\n" + "".join(entries)


def _entry(module: ModuleType, name: str) -> str:
    """The directive for one public name; modules have pages of their own."""
    value = getattr(module, name)
    path = f"{module.__name__}.{name}"
    if inspect.ismodule(value):
        return ""
    # A name that is documented on the page of a module further down is only mentioned here.
    if module.__name__ == "maskgrad" and getattr(value, "__module__", "") in PUBLIC_MODULES[1:]:
        role = "exc" if inspect.isclass(value) and issubclass(value, Exception) else "obj"
        return f":py:{role}:`{value.__module__}.{name}`\n\n"
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return f".. {kind}:: {path}\n   :members:\n   :show-inheritance:\n\n"
    if callable(value):
        return f".. autofunction:: {path}\n\n"
    return f".. autodata:: {path}\n   :no-value:\n\n" if not name.startswith("__") else ""
