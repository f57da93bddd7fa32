"""Files that are complete or not there at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["checked_path", "replaced_when_complete"]


def checked_path(path: str | os.PathLike[str]) -> Path:
    """The path, if something can be written there."""
    if not isinstance(path, (str, os.PathLike)) or not str(os.fspath(path)):
        raise TypeError(
            f"path must be a string or a path, found {path!r}; write the name of a file, 'model.onnx'"
        )
    target = Path(os.fspath(path)).absolute()
    if target.is_dir():
        raise IsADirectoryError(
            f"path must name a file, but {str(path)!r} is a folder; append a name, 'model.onnx'"
        )
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"path must lie in a folder that exists; there is no {str(target.parent)!r}: make it"
        )
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(
            f"path must lie in a folder that can be written to, {str(target.parent)!r} cannot"
        )
    return target


@contextlib.contextmanager
def replaced_when_complete(target: Path) -> Iterator[Path]:
    """A path of the same name elsewhere; what is there in the end, and beside it, takes the place of ``target``.

    If the block is left by an exception, everything is as before.
    """
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        yield folder / target.name
        # weights in a file of their own come first, so that the model is never without them
        for part in sorted(folder.iterdir(), key=lambda part: part.name == target.name):
            os.replace(part, target.parent / part.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
