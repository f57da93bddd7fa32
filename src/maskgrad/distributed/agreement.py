"""Agreement of ranks: either all continue, or all raise, so that an error on one leaves no others waiting."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
from types import TracebackType

from torch import Tensor

from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.errors import LostRankError

__all__ = ["Postponed", "check_consistent", "digest", "shown"]

_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (IndexError, RuntimeError, TypeError, ValueError)
}
_ERROR, _PLAN = "error", "plan"


class Postponed(contextlib.AbstractContextManager["Postponed"]):
    """Keeps an exception of its block as ``error``, to be raised on all ranks together."""

    error: Exception | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, LostRankError):
            return False
        self.error = error
        return True


def shown(value: object) -> str:
    """An option as a string that does not depend on the rank."""
    if isinstance(value, Tensor):
        number = f" {value.item()}" if value.numel() == 1 else ""
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}{number}"
    plain = (int, float, bool, str, tuple, list, type(None), complex, datetime.timedelta)
    return repr(value) if isinstance(value, plain) else f"a {type(value).__name__}"


def digest(text: str) -> int:
    """A hash of a rank's plan; 56 bits, so that it fits into an int64."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def check_consistent(
    group: ProcessGroup,
    plan: str,
    error: Exception | None = None,
    *,
    what: str | None = None,
    kind: type[Exception] = ValueError,
) -> None:
    """Return if all ranks have the same plan and none has an error; raise on every rank otherwise. Waits.

    ``plan`` is a string, with parts separated by ``"; "``. If the plans differ, ``kind`` is raised with the first
    difference; if a rank has an ``error``, it is raised there, and one of its type that quotes it elsewhere.
    """
    what = group.what if what is None else what
    own = f"{_PLAN}\n{plan}" if error is None else f"{_ERROR}\n{type(error).__name__}\n{error}"
    gathered = group.gather_texts(own)
    if error is not None:
        raise error
    for rank, text in enumerate(gathered):
        if text.startswith(_ERROR):
            _, name, message = text.split("\n", 2)
            raise _KINDS.get(name, RuntimeError)(
                f"{what}: rank {rank} raised an error, so every rank does; nothing was changed. "
                f"On rank {rank}: {name}: {message}"
            )
    plans = [[*text.split("\n", 1)[1].split("; "), "nothing more"] for text in gathered]
    for rank, other in enumerate(plans):
        if other != plans[0]:
            here, there = next((a, b) for a, b in zip(plans[0], other, strict=False) if a != b)
            raise kind(
                f"{what}: the ranks disagree; nothing was changed. Rank 0 has {here}, rank {rank} has {there}; make "
                "them equal, in the same order on all ranks"
            )
