"""Options that several commands share, checked before any work begins."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    import torch

__all__ = ["usable_device", "writable_directory"]


def usable_device(name: str) -> torch.device:
    """The device called ``name``, if a number can be stored there and read back.

    Raises:
        typer.BadParameter: PyTorch does not know the device, or cannot use it here.
    """
    import torch

    try:
        device = torch.device(name)
        # "cuda" without a GPU fails on the way there, "meta" on the way back
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise typer.BadParameter(
            f"{name!r} cannot be used here ({reason}). Try --device cpu.", param_hint="'--device'"
        ) from None
    return device


def writable_directory(path: Path) -> None:
    """Create the folder ``path`` if need be, and make sure that files can be written into it.

    Raises:
        typer.BadParameter: it is a file, lies below one, or may not be written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write into {str(path)!r} ({error.strerror or error}). Name a folder of yours.",
            param_hint="'--out'",
        ) from None
