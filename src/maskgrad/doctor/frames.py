"""Which line of the user's program is running: not of PyTorch, of installed packages or of the doctor."""

from __future__ import annotations

import bisect
import functools
import linecache
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

__all__ = ["Lines", "Place", "callers", "here", "is_users"]

_OURS = str(Path(__file__).parent.parent)
_DOCTOR = str(Path(__file__).parent)
#: who runs a script: what is beyond, such as ``bin/maskgrad``, is no line of the program
_COMMAND = str(Path(_OURS) / "cli")
_LIBRARIES = tuple(
    {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(Path(torch.__file__).parent), _OURS}
)
#: packages whose lines belong to no model
_COMPUTED_BY = frozenset(
    ("torch", "functorch", "numpy", "numba", "triton", "einops", "torch_xla", "_pytest", "pluggy", "xdist")
)
#: the function in which the doctor calls the user's step
BOUNDARY = "call_step"
_BACKWARD = "_engine_run_backward"


@dataclass(frozen=True)
class Place:
    """A line of a file, and the function it is in."""

    file: str
    line: int
    function: str = ""
    #: the innermost line of an installed package that the line calls
    package_file: str = ""
    package_line: int = 0

    @property
    def code(self) -> str:
        """The text of the line."""
        return linecache.getline(self.file, self.line).strip()


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file belongs to the user's program."""
    if file.startswith("<"):
        return file.startswith(("<stdin>", "<ipython"))
    return not re.search(r"[\\/](site|dist)-packages[\\/]", file) and not file.startswith(_LIBRARIES)


@functools.cache
def _is_packages(file: str) -> bool:
    """Whether a file belongs to an installed package that computes with PyTorch, such as a library of models."""
    inside = re.search(r"[\\/](?:site|dist)-packages[\\/](\w+)", file)
    return inside is not None and inside[1] not in _COMPUTED_BY and not file.startswith(_OURS)


def _frames() -> Iterator[tuple[str, FrameType]]:
    """The frames of the program and their files, the innermost first, up to the call of the step or of backward()."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if (frame.f_code.co_name == BOUNDARY and file.startswith(_DOCTOR)) or file.startswith(_COMMAND):
            return
        yield file, frame
        if frame.f_code.co_name == _BACKWARD:
            return
        frame = frame.f_back


def here() -> Place | None:
    """The innermost line of the user's program; that of a package that computes with PyTorch if there is none."""
    package = ("", 0)
    for file, frame in _frames():
        if frame.f_code.co_name == _BACKWARD:
            return None  # who calls backward() is not who computes there
        if is_users(file):
            return Place(file, frame.f_lineno, frame.f_code.co_name, *package)
        if not package[0] and _is_packages(file):
            package = (file, frame.f_lineno)
    return Place(*package) if package[0] else None


def callers(place: Place | None) -> list[str]:
    """The lines of the program through which a line was reached, the innermost first; none in a backward pass."""
    found = [Place(file, frame.f_lineno) for file, frame in _frames() if is_users(file)]
    reached = place is not None and bool(found) and (found[0].file, found[0].line) == (place.file, place.line)
    return [f"{at.file}:{at.line}: {at.code}" for at in found[1:4]] if reached else []


class Lines:
    """Lines of the program to which the nodes of the autograd graph belong, and so what runs in a backward pass.

    Anomaly detection has lines, too, but formats a whole stack for each node: half of the time of a step.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._places: list[Place | None] = []
        self._last = -1

    def note(self) -> None:
        """An operation is about to run: its node, if it has one, is the newest."""
        made = torch._C._autograd._get_sequence_nr() - 1
        if made > self._last:
            self._last = made
            self._numbers.append(made)
            self._places.append(self.here())

    def here(self) -> Place | None:
        """The line that is running; in a backward pass that of the forward pass which made the node."""
        node = torch._C._current_autograd_node()
        found = here()
        if found is not None or node is None:
            return found
        number = node._sequence_nr()
        if number > self._last:  # leaves have the largest number there is
            return None
        place = bisect.bisect_right(self._numbers, number)
        return self._places[place - 1] if place else None
