"""Optional packages: imported when they are needed, and missed with a remedy."""

from __future__ import annotations

import importlib

from maskgrad.errors import MissingDependencyError

__all__ = ["require"]


def require(package: str, purpose: str) -> None:
    """Raise the error that names the extra, if ``package`` cannot be imported."""
    try:
        importlib.import_module(package)
    except ImportError:
        raise MissingDependencyError(package, "interop", purpose) from None
