"""Patches of PyTorch or another package, applied only if all their requirements are met."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import pkgutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from maskgrad.errors import TorchPatchWarning, UnsupportedOperationError
from maskgrad.masked_tensor.torch_patches.pytrees import holds_masked

__all__ = ["HOLDS", "WAITS", "Patch", "after_import", "apply", "exchange", "look_for", "refuse", "rename"]

HOLDS = "holds"
#: a module imported later (Dynamo by the first ``torch.compile``) is patched then
WAITS = "waits"


@dataclass
class Patch:
    """A record of the table.

    Attributes:
        target: dotted path of the replaced, extended or registered object.
        reason: behaviour of PyTorch without it.
        without: the warning if the patch cannot be applied: what happens, and what to do.
        test: a test that fails without the patch.
        needs: dotted paths that must exist, each with its required parameters (None: not checked).
        install: changes PyTorch; called once, after all of ``needs`` were found. It may return a function to undo it.
        after: the module of PyTorch after whose import it is installed; empty if ``import torch`` imports it.
        state: one of :data:`HOLDS`, :data:`WAITS`, or the missing requirements.
    """

    target: str
    reason: str
    without: str
    test: str
    needs: Mapping[str, str | None]
    install: Callable[[], Callable[[], None] | None]
    after: str = ""
    state: str = WAITS
    _undo: Callable[[], None] | None = field(default=None, repr=False)

    def apply(self) -> None:
        """Install it if all requirements are met; else set the state to those that are not."""
        if self.state != WAITS:
            return
        missing = next((found for path, names in self.needs.items() if (found := look_for(path, names))), "")
        if not missing:
            try:
                self._undo = self.install()
            except (AttributeError, LookupError, TypeError) as error:  # PyTorch must still be imported
                missing = f"{self.target} has changed ({type(error).__name__}: {error})"
        self.state = missing or HOLDS

    def remove(self) -> None:
        """Restore the original."""
        if self._undo is not None:
            self._undo()
        self._undo, self.state = None, WAITS

    @property
    def is_off(self) -> bool:
        """Return whether it is needed and not applied."""
        return self.state not in (HOLDS, WAITS)


def apply(patches: Sequence[Patch], package: str, hint: str = "") -> None:
    """Apply all applicable patches, and warn once about the others, which need another version of ``package``."""
    for patch in patches:
        patch.apply()
    off = "; ".join(f"{patch.state}: {patch.without}" for patch in patches if patch.is_off)
    if off:
        words = f"{package} is not supported completely by this version of maskgrad: {off}{hint}"
        warnings.warn(words, TorchPatchWarning, stacklevel=3)


def look_for(path: str, parameters: str | None = None) -> str:
    """Return the problem with ``path`` (``torch.nn.Module.register_buffer``); empty if there is none."""
    try:
        found: Any = pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        found = None
    if found is None:
        return f"{path} does not exist"
    if parameters is not None:
        try:
            names = tuple(inspect.signature(found).parameters)
        except (TypeError, ValueError):
            return f"{path} has no signature"
        expected = tuple(parameters.split())
        if names[: len(expected)] != expected:
            return f"{path} takes ({', '.join(names)}), not ({', '.join(expected)})"
    return ""


def exchange(path: str, function: Callable[..., Any], everywhere: bool = True) -> Callable[[], None]:
    """Replace the function or method at ``path`` by ``function(original, *args, **kwargs)``.

    With ``everywhere``, also in all loaded modules that have imported it.

    Returns:
        A function that restores the original.
    """
    place, _, name = path.rpartition(".")
    owner: Any = pkgutil.resolve_name(place)
    original: Any = getattr(owner, name)

    def called(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    new: Any = called
    if everywhere and inspect.isfunction(original):
        # TorchScript compiles the source of the original, and looks for its names here
        new = FunctionType(called.__code__, original.__globals__, closure=called.__closure__)
    functools.update_wrapper(new, original)
    before = vars(owner).get(name)  # None: inherited
    setattr(owner, name, new)
    all_names = everywhere and isinstance(owner, ModuleType)
    if all_names:
        rename(original, new)

    def undo() -> None:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
        if all_names:
            rename(new, original)

    return undo


def rename(old: Any, new: Any) -> None:
    """Replace an object in all loaded modules, under each of its names."""
    for module in [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]:
        for key in [key for key, value in list(vars(module).items()) if value is old]:
            setattr(module, key, new)


def refuse(path: str, reason: str, remedy: str, only_with: str = "") -> Callable[[], Callable[[], None]]:
    """Return an ``install`` that makes the function at ``path`` raise for a MaskedTensor.

    With ``only_with``: only if that keyword is given, and not None.
    """
    of_class = path.split(".")[-2][:1].isupper()  # its first argument is self, in __init__ an empty object

    def guarded(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        applies = not only_with or kwargs.get(only_with) is not None
        if applies and holds_masked((args[of_class:], kwargs)):
            raise UnsupportedOperationError(path, reason, remedy)
        return original(*args, **kwargs)

    return lambda: exchange(path, guarded)


def after_import(name: str, call: Callable[[], None]) -> None:
    """Call ``call`` now if the module ``name`` is imported, else as soon as it is.

    This does not import it, as Dynamo takes a second.
    """
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Finder(name, call))


class _Finder(importlib.abc.MetaPathFinder):
    """A finder that waits for one module, removes itself, and calls ``call`` after the module was executed."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self.name, self.call = name, call

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.call()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
