"""Patches of another package, as data, installed and undone as a whole."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from maskgrad.masked_tensor.other_packages import settle, unsettle
from maskgrad.masked_tensor.torch_patches.patch import HOLDS, Patch, apply, exchange, refuse

__all__ = ["Integration", "Without", "exchanged", "refusals"]

Without = Literal["wrong in silence", "raises", "keeps an object"]


@dataclass(frozen=True, repr=False)
class Integration:
    """The record of a package.

    Attributes:
        package: import name.
        without: behaviour with MaskedTensors without the patches: ``"wrong in silence"``,
            ``"raises"`` an error that does not say what to write, or ``"keeps an object"`` that it cannot compute with.
        patches: replaced functions, each with its reason and the test that fails without it.
    """

    package: str
    without: Without
    patches: tuple[Patch, ...]

    def __repr__(self) -> str:
        state = "installed" if self.is_installed else "not installed"
        return f"<Integration of {self.package}, {state}: {len(self.patches)} patches>"

    @property
    def is_installed(self) -> bool:
        """Return whether any patch is installed."""
        return any(patch.state == HOLDS for patch in self.patches)

    @property
    def off(self) -> tuple[str, ...]:
        """Patches that do not fit this version of the package, and the consequences."""
        return tuple(f"{patch.state}: {patch.without}" for patch in self.patches if patch.is_off)

    def install(self) -> None:
        """Apply all patches; warn once about those that do not fit this version of the package."""
        for module in dict.fromkeys(patch.after for patch in self.patches):
            with contextlib.suppress(ModuleNotFoundError):  # reported by the patch
                importlib.import_module(module)
        apply(self.patches, self.package)
        settle([self.package])

    def uninstall(self) -> None:
        """Undo the patches, the last one first."""
        for patch in reversed(self.patches):
            patch.remove()
        unsettle(self.package)


def refusals(
    functions: str, reason: str, remedy: str, test: str, within: str = "", only_with: str = ""
) -> Iterator[Patch]:
    """Yield a patch for each ``module:name`` of ``functions``, relative to ``within``, that refuses MaskedTensors.

    With ``only_with``: only if that keyword is given, and not None.
    """
    for found in functions.split():
        module, _, name = f"{within}{found}".partition(":")
        path = f"{module}.{name}"
        yield Patch(
            target=path,
            reason=reason,
            without=f"{path} may be wrong on a MaskedTensor: {reason}. {remedy}",
            test=f"tests/ecosystem/{test}",
            needs={path: None},
            install=refuse(path, reason, remedy, only_with),
            after=module,
        )


def exchanged(
    module: str,
    name: str,
    parameters: str,
    function: Callable[..., Any],
    reason: str,
    without: str,
    test: str,
) -> Patch:
    """Return a patch after which ``module.name``, which takes ``parameters``, is ``function(original, …)``."""
    path = f"{module}.{name}"
    install = functools.partial(exchange, path, function)
    return Patch(path, reason, without, f"tests/ecosystem/{test}", {path: parameters}, install, after=module)
