"""Examples are tests: those in docstrings, and the fenced Python blocks of README.md and docs/*.md.

The blocks of one page share their names, from top to bottom, as a reader would type them. A block with
prompts (``>>>``) is a doctest, one without is simply executed. Tests proper have ``tests/conftest.py``.
"""

import os
import sys
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

# Processes that have a core each: with teams of threads they would wait for each other's. Read when torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _names_in_docstrings(doctest_namespace: dict[str, Any]) -> None:
    """Give `torch` and `mg` to the examples in docstrings; everything else they import."""
    import torch

    import maskgrad

    doctest_namespace.update(torch=torch, mg=maskgrad)


pytest_plugins = ["tests.effort", "tests.defaults"]

collect_ignore = ["docs/conf.py", "docs/mathematics.py", "docs/how_do_i", "tests/ecosystem/programs"]
collect_ignore += ["docs/_build", "docs/generated"]  # `make docs` copies programs there
if find_spec("torch_xla") is None:  # `make test-xla` installs it in an environment of its own
    collect_ignore.append("tests/xla")
if find_spec("torch_geometric") is None:  # nor would `make test` find what `make test-ecosystem` installs
    collect_ignore.append("tests/ecosystem")


class _Page(ModuleType):
    """The names of a page as a module: torch.compile of PyTorch 2.12 looks for a function's globals in one.

    It is the same module for all pages, of which the names change: torch.compile keeps the first that it has seen.
    """

    def __init__(self) -> None:
        super().__init__("__test__")
        object.__setattr__(self, "names", {})

    def __getattribute__(self, name: str) -> Any:
        names = object.__getattribute__(self, "names")
        if name == "__dict__":
            return names
        return names[name] if name in names else object.__getattribute__(self, name)


_page = _Page()


def _begin_page(names: dict[str, Any]) -> None:
    object.__setattr__(_page, "names", names)
    sys.modules["__test__"] = _page
    if "torch._dynamo" in sys.modules:  # it may have compiled so much that it would compile nothing here
        sys.modules["torch._dynamo"].reset()


pytest_collect_file = Sybil(
    parsers=[
        PythonCodeBlockParser(doctest_optionflags=ELLIPSIS | NORMALIZE_WHITESPACE),
        SkipParser(),
    ],
    patterns=["README.md", "docs/*.md", "docs/families/*.md", "docs/trainers/*.md"],
    setup=_begin_page,
).pytest()
