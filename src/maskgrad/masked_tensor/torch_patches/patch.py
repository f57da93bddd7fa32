"""One thing that is replaced or registered inside PyTorch or another package: touched only if it is as expected."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from maskgrad.errors import TorchPatchWarning, UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = [
    "HOLDS",
    "UNNECESSARY",
    "WAITS",
    "Patch",
    "after_import",
    "apply",
    "exchange",
    "has_masked",
    "look_for",
    "refuse",
]

HOLDS = "holds"
#: a module that is imported late (Dynamo by the first ``torch.compile``) is patched then
WAITS = "waits"
#: this PyTorch needs no patch, an older one did
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


def apply(patches: Sequence[Patch], package: str, hint: str = "") -> None:
    """Apply what can be applied, and warn once of what cannot, because ``package`` is another version."""
    for patch in patches:
        patch.apply()
    off = "; ".join(f"{patch.state}: {patch.without}" for patch in patches if patch.is_off)
    if off:
        words = f"{package} is not as this maskgrad expects it: {off}{hint}"
        warnings.warn(words, TorchPatchWarning, stacklevel=3)


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


def exchange(path: str, function: Callable[..., Any], everywhere: bool = True) -> None:
    """Let ``function(original, *args, **kwargs)`` take the calls of the function or method at ``path``.

    With ``everywhere``, under all names that it has already: a package may have been imported before us, and its
    modules then have the function under names of their own.
    """
    parts = path.split(".")
    lengths = range(len(parts) - 1, 0, -1)
    loaded = next((n for n in lengths if ".".join(parts[:n]) in sys.modules), None)
    if loaded is None:
        raise ModuleNotFoundError(path)
    module: Any = sys.modules[".".join(parts[:loaded])]
    owner: Any = functools.reduce(getattr, parts[loaded:-1], module)
    original: Any = getattr(owner, parts[-1])

    def called(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    new: Any = called
    if everywhere and inspect.isfunction(original):
        # TorchScript compiles the source of the original, and looks for its names here
        new = FunctionType(called.__code__, original.__globals__, closure=called.__closure__)
    functools.update_wrapper(new, original)
    setattr(owner, parts[-1], new)
    if everywhere and owner is module:
        for name, other in list(sys.modules.items()):
            if name.partition(".")[0] == parts[0]:
                for key in [key for key, value in list(vars(other).items()) if value is original]:
                    setattr(other, key, new)


def has_masked(given: object) -> bool:
    """Whether there is a MaskedTensor in nested lists, tuples and dicts."""
    if isinstance(given, (list, tuple)):
        return any(map(has_masked, given))
    if isinstance(given, dict):
        return any(map(has_masked, given.values()))
    return isinstance(given, MaskedTensor)


def refuse(path: str, reason: str, remedy: str, only_with: str = "") -> Callable[[], None]:
    """An ``install`` of a table: the function at ``path`` raises if it is given a MaskedTensor.

    With ``only_with``: and if that keyword is given, and not None.
    """

    def guarded(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        asked = not only_with or kwargs.get(only_with) is not None
        if asked and (has_masked(args) or has_masked(kwargs)):
            raise UnsupportedOperationError(path, reason, remedy)
        return original(*args, **kwargs)

    return lambda: exchange(path, guarded)


def after_import(name: str, call: Callable[[], None]) -> None:
    """Call ``call`` now if the module ``name`` has been imported, else as soon as it is.

    It is not imported for that: Dynamo alone would cost a second.
    """
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
