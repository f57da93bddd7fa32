"""The packages that files need: imported when a file is written, and missed with a remedy."""

from __future__ import annotations

from maskgrad import optional_packages

__all__ = ["require"]


def require(purpose: str, *, with_runtime: bool) -> None:
    """Raise the error that says what to install, if a package cannot be used; the runtime only if something runs."""
    for package in ("onnx", "onnxscript", *(["onnxruntime"] if with_runtime else [])):
        optional_packages.require(package, purpose)
