"""Which line of the user's program is running: not of PyTorch, of installed packages or of the doctor."""

from __future__ import annotations

import bisect
import functools
import linecache
import re
import sys
import sysconfig
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
#: how many callers of a line are reported
_CALLERS = 3


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
    if re.search(r"[\\/](site|dist)-packages[\\/]", file):
        return False
    return not file.startswith(_LIBRARIES)


@functools.cache
def _is_packages(file: str) -> bool:
    """Whether a file belongs to an installed package that computes with PyTorch, such as a library of models."""
    inside = re.search(r"[\\/](?:site|dist)-packages[\\/](\w+)", file)
    return inside is not None and inside[1] not in _COMPUTED_BY and not file.startswith(_OURS)


def here() -> Place | None:
    """The innermost line of the user's program; the innermost line of a library if there is none."""
    frame: FrameType | None = sys._getframe(1)
    library, package = None, ("", 0)
    while frame is not None:
        file = frame.f_code.co_filename
        if frame.f_code.co_name == "_engine_run_backward":
            # who calls backward() is not who computes there
            return None
        if file.startswith(_DOCTOR):
            if frame.f_code.co_name == BOUNDARY:
                break
        elif is_users(file):
            return Place(file, frame.f_lineno, frame.f_code.co_name, *package)
        elif not package[0] and _is_packages(file):
            package = (file, frame.f_lineno)
        elif library is None and not file.startswith(_LIBRARIES) and not file.startswith("<"):
            library = Place(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return Place(*package) if library is None and package[0] else library


def callers(place: Place | None) -> list[str]:
    """The lines of the program through which a line was reached, the innermost first; none in a backward pass."""
    frame: FrameType | None = sys._getframe(1)
    found: list[Place] = []
    while frame is not None and frame.f_code.co_name not in (BOUNDARY, "_engine_run_backward"):
        file = frame.f_code.co_filename
        if file.startswith(_COMMAND):
            break
        if is_users(file):
            found.append(Place(file, frame.f_lineno))
        frame = frame.f_back
    reached = place is not None and bool(found) and (found[0].file, found[0].line) == (place.file, place.line)
    return [f"{at.file}:{at.line}: {at.code}" for at in found[1 : 1 + _CALLERS]] if reached else []


class Lines:
    """Lines of the program to which the nodes of the autograd graph belong, and so what runs in a backward pass.

    Nodes are numbered as they are made. Anomaly detection has lines too, but formats a whole stack for each node,
    which took half of the time of a step.
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
