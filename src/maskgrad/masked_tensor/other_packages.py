"""Warnings about other packages, when a MaskedTensor is created after they were imported.

Packages that would be silently wrong cause a warning, once, unless ``mg.integrations.install`` was called for
them. No other package is changed here: einops has a registry.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from maskgrad.errors import IntegrationWarning
from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["WRONG_IN_SILENCE", "level_of_user", "notice_packages", "register_einops", "settle", "unsettle"]

#: Must equal the records in ``maskgrad.integrations``; checked by a test.
WRONG_IN_SILENCE = frozenset(
    [
        "accelerate",
        "ignite",
        "opacus",
        "timm",
        "torch_geometric",
        "torchjd",
        "torchmetrics",
        "torchvision",
        "transformers",
    ]
)
_settled: set[str] = set()
#: Number of modules at the last check.
_seen = [0]
_backends: list[type] = []


def notice_packages() -> None:
    """Check again if modules were imported. This takes less than 0.2 µs, and is not part of compiled graphs."""
    if not torch.compiler.is_dynamo_compiling() and len(sys.modules) != _seen[0]:
        _look()


def _look() -> None:
    _seen[0] = len(sys.modules)
    if "einops._backends" in sys.modules:
        register_einops()
    found = sorted((WRONG_IN_SILENCE & sys.modules.keys()) - _settled)
    if found:
        settle(found)
        names = ", ".join(f'"{name}"' for name in found)
        warnings.warn(
            f"{' and '.join(found)} may give wrong results for MaskedTensors without an error. Call "
            f"mg.integrations.install({names}) once, after the imports",
            IntegrationWarning,
            stacklevel=level_of_user(),
        )


def level_of_user() -> int:
    """Return the stack level of the user's line for a warning of the caller."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("maskgrad."):
        frame, level = frame.f_back, level + 1
    return level


def settle(packages: Iterable[str]) -> None:
    """Do not warn about these packages again: they are installed, or had a warning."""
    _settled.update(packages)


def unsettle(package: str) -> None:
    """Warn about this package again when the next MaskedTensor is created."""
    _settled.discard(package)
    _seen[0] = 0


def register_einops() -> None:
    """Define a backend of einops, which finds all subclasses of its own."""
    if _backends:
        return
    from einops import _backends as backends

    class MaskedBackend(backends.TorchBackend):  # type: ignore[misc]
        framework_name = "maskgrad"

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, MaskedTensor)

        def from_numpy(self, x: Any) -> Any:
            raise NotImplementedError("NumPy arrays have no mask; use mg.from_numpy")

        def to_numpy(self, x: Any) -> Any:
            return x.to_numpy()

    # einops keeps weak references
    _backends.append(MaskedBackend)
