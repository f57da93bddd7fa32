"""The packages that the files need: imported when a file is written, and missed with a remedy."""

from __future__ import annotations

import importlib

from maskgrad.errors import MissingDependencyError

__all__ = ["require"]

PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def require(purpose: str, *, with_runtime: bool) -> None:
    """Raise the error that names the extra, if a package cannot be imported; the runtime only if something runs."""
    for package in PACKAGES if with_runtime else PACKAGES[:-1]:
        _import(package, purpose)


def _import(package: str, purpose: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError:
        raise MissingDependencyError(package, "onnx", purpose) from None
