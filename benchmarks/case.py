"""What is measured: a case, and who takes part in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

__all__ = ["OURS", "Case", "Comparison", "Implementation", "LeftOutError", "WrongResultError"]

#: the contender that all others are compared with
OURS = "maskgrad"


class LeftOutError(Exception):
    """A case or a contender cannot be measured here; the message says why. The others go on."""


class WrongResultError(Exception):
    """A contender's result is wrong, or maskgrad failed: the family stops, and nothing of the case is timed."""


def _as_it_is(result: Any) -> Any:
    return result


@dataclass(frozen=True)
class Implementation:
    """One way to do the task."""

    #: what is timed
    call: Callable[[], Any]
    #: plain tensors out of what ``call`` returned, for the check; None for a yardstick, which does something else
    read: Callable[[Any], Any] | None = _as_it_is


@dataclass(frozen=True)
class Comparison:
    """A case made ready to run."""

    #: by name, maskgrad's own first; each is made only if it is wanted
    contenders: Mapping[str, Callable[[], Implementation]]
    #: compares what a contender read with a reference that is independent of all of them; raises AssertionError
    verify: Callable[[Any], None]
    #: compares maskgrad's with another's, entry for entry; raises AssertionError
    agree: Callable[[Any, Any], None] = torch.testing.assert_close
    #: what must at least be read and written, where this is known
    bytes_moved: int | None = None
    #: whether the memory that a call takes at its peak is measured too
    weighs: bool = False


@dataclass(frozen=True)
class Case:
    """One line of a table."""

    family: str
    #: as one would write it, ``"mean(1)"``
    operation: str
    #: ``"forward"``, ``"forward + backward"``, ``"step"``, ``"lookup + backward + step"``
    work: str
    shape: tuple[int, ...]
    #: share of specified entries; None where there is no mask
    density: float | None
    dtype: str
    prepare: Callable[[], Comparison]
    #: what else tells it from other cases
    note: str = ""

    @property
    def entries(self) -> int:
        """How many entries the operand has."""
        return prod(self.shape)

    def __str__(self) -> str:
        parts = [self.operation, self.work, "x".join(map(str, self.shape)), self.dtype]
        if self.density is not None:
            parts.append(f"density {self.density:g}")
        return ", ".join([*parts, self.note] if self.note else parts)
