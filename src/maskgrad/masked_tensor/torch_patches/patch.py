"""One thing that is replaced or registered inside PyTorch: looked for first, touched only if it is as expected."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["HOLDS", "UNNECESSARY", "WAITS", "Patch", "look_for"]

HOLDS = "holds"
#: PyTorch's module is imported late (Dynamo by the first ``torch.compile``), and is completed then
WAITS = "waits"
#: this PyTorch does by itself what an older one had to be told
UNNECESSARY = "not needed"


@dataclass
class Patch:
    """A record of the table.

    Attributes:
        target: what is replaced, completed or registered, by its dotted path.
        reason: what PyTorch does by itself.
        without: what happens where the patch cannot be applied, and what to do; the words of the warning.
        test: fails without the patch.
        needs: dotted paths that must exist, each with the parameters that it must have (None: not looked at).
        install: touches PyTorch; called once, after all of ``needs`` were found.
        how: ``"replaced"``, ``"replaced while exporting"``, ``"completed"`` (a table of PyTorch's gets an entry) or
            ``"registered"``.
        versions: of PyTorch that need it.
        after: the module of PyTorch after whose import it is installed; empty if ``import torch`` imports it.
        known: whether this PyTorch needs no patch; asked after ``needs`` were found.
        state: one of :data:`HOLDS`, :data:`WAITS`, :data:`UNNECESSARY`, or what was not found.
    """

    target: str
    reason: str
    without: str
    test: str
    needs: Mapping[str, str | None]
    install: Callable[[], None]
    how: str = "replaced"
    versions: str = "all"
    after: str = ""
    known: Callable[[], bool] = field(default=lambda: False)
    state: str = WAITS

    def apply(self) -> None:
        """Install it if all that it needs is there and as expected; remember what was not."""
        if self.state != WAITS:
            return
        missing = next((found for path, names in self.needs.items() if (found := look_for(path, names))), "")
        if missing:
            self.state = missing
        elif self.known():
            self.state = UNNECESSARY
        else:
            self.install()
            self.state = HOLDS

    @property
    def is_off(self) -> bool:
        """Whether what it protects against is unprotected."""
        return self.state not in (HOLDS, WAITS, UNNECESSARY)


def look_for(path: str, parameters: str | None = None) -> str:
    """What is wrong with ``path`` (``torch.nn.Module._get_backward_hooks``) in words; empty if it is as expected."""
    found: Any = None
    parts = path.split(".")
    for i, part in enumerate(parts):
        found = _module(part) if i == 0 else getattr(found, part, None)
        if found is None:
            found = _module(".".join(parts[: i + 1]))
        if found is None:
            return f"{'.'.join(parts[: i + 1])} is not there"
    if parameters is not None:
        try:
            names = tuple(inspect.signature(found).parameters)
        except (TypeError, ValueError):
            return f"{path} does not say what it takes"
        expected = tuple(parameters.split())
        if names[: len(expected)] != expected:
            return f"{path} takes ({', '.join(names)}), not ({', '.join(expected)})"
    return ""


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None
