"""Options shared by several commands, checked before any work."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    import torch

__all__ = ["usable_device", "writable_directory"]


def usable_device(name: str) -> torch.device:
    """Return the device ``name``, if a value can be stored there and read back.

    Raises:
        typer.BadParameter: PyTorch does not know the device, or cannot use it here.
    """
    import torch

    try:
        device = torch.device(name)
        # "cuda" without a GPU fails when writing, "meta" when reading
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise typer.BadParameter(
            f"{name!r} cannot be used here ({reason}). Try --device cpu.", param_hint="'--device'"
        ) from None
    return device


def writable_directory(path: Path) -> None:
    """Create the folder ``path`` if necessary, and check that files can be written to it.

    Raises:
        typer.BadParameter: it is a file, is below one, or is not writable.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write to {str(path)!r} ({error.strerror or error}). Choose another folder.",
            param_hint="'--out'",
        ) from None
