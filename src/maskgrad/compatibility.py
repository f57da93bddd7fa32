"""Raise an ImportError on import if the version of PyTorch or NumPy is not supported.

``maskgrad/__init__.py`` imports this module first: later imports would fail on an old PyTorch with an
``AttributeError`` that does not name the cause.
"""

from __future__ import annotations

import numpy as np
import torch

from maskgrad.versions import NUMBA, NUMPY, TORCH_MINORS, TORCH_OF_XLA, is_before, release

__all__ = ["refusal_of_numba", "refusal_of_numpy", "refusal_of_torch"]


def refusal_of_torch(version: object) -> str:
    """Return why this PyTorch is not supported and what to install; empty if it is supported."""
    known = release(version)
    if known.startswith(f"{TORCH_OF_XLA}.") or not is_before(known, TORCH_MINORS[0]):
        return ""
    needed = f"PyTorch {TORCH_MINORS[0]} or newer (or {TORCH_OF_XLA}, for PyTorch/XLA)"
    return f"maskgrad needs {needed}, and found {version}; {_remedy('torch', TORCH_MINORS[0])}"


def refusal_of_numpy(version: object) -> str:
    """The same for NumPy."""
    return _refusal("NumPy", version, NUMPY)


def refusal_of_numba(version: object) -> str:
    """The same for Numba, checked when the first kernel is compiled, as importing Numba takes a second."""
    return _refusal("Numba", version, NUMBA)


def _refusal(name: str, version: object, least: str) -> str:
    if not is_before(version, least):
        return ""
    return f"maskgrad needs {name} {least} or newer, and found {version}; {_remedy(name.lower(), least)}"


def _remedy(distribution: str, least: str) -> str:
    return f"install one with: pip install --upgrade '{distribution}>={least}'"


for _refused in (refusal_of_torch(torch.__version__), refusal_of_numpy(np.__version__)):
    if _refused:
        raise ImportError(_refused)
