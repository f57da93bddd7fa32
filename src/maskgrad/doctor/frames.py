"""Which line of the user's program is running: not of PyTorch, of installed packages or of the doctor."""

from __future__ import annotations

import functools
import linecache
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

__all__ = ["Place", "backward_place", "here", "is_users"]

_OURS = str(Path(__file__).parent.parent)
_DOCTOR = str(Path(__file__).parent)
_LIBRARIES = tuple(
    {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(Path(torch.__file__).parent), _OURS}
)
#: the function in which the doctor calls the user's step
BOUNDARY = "call_step"


@dataclass(frozen=True)
class Place:
    """A line of a file, and the function it is in."""

    file: str
    line: int
    function: str = ""

    @property
    def code(self) -> str:
        """The text of the line."""
        return linecache.getline(self.file, self.line).strip()


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file belongs to the user's program."""
    if file.startswith("<"):
        return file.startswith(("<stdin>", "<ipython"))
    if re.search(r"[\\/](site|dist)-packages[\\/]", file):
        return False
    return not file.startswith(_LIBRARIES)


def here() -> Place | None:
    """The innermost line of the user's program; the innermost line of a library if there is none."""
    frame: FrameType | None = sys._getframe(1)
    library = None
    while frame is not None:
        file = frame.f_code.co_filename
        if frame.f_code.co_name == "_engine_run_backward":
            # who calls backward() is not who computes there
            return None
        if file.startswith(_DOCTOR):
            if frame.f_code.co_name == BOUNDARY:
                break
        elif is_users(file):
            return Place(file, frame.f_lineno, frame.f_code.co_name)
        elif library is None and not file.startswith(_LIBRARIES) and not file.startswith("<"):
            library = Place(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return library


def backward_place() -> Place | None:
    """In a backward pass: the line of the forward pass that made the node; needs anomaly detection."""
    node = torch._C._current_autograd_node()
    if node is None:
        return None
    metadata: Any = node.metadata
    lines = metadata.get("traceback_")
    if not lines:
        return None
    found = None
    for entry in lines:
        for match in re.finditer(r'File "([^"]+)", line (\d+), in (\S+)', entry):
            file, line, function = match.group(1), int(match.group(2)), match.group(3)
            if file.startswith(_DOCTOR) and function == BOUNDARY:
                found = None
            elif is_users(file):
                found = Place(file, line, function)
    return found
