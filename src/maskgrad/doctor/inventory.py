"""The inventory: what a batch holds, what each part of it is taken for, and whether it was examined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ROLES", "Part", "Skipped", "table_of"]

#: what a tensor, array or list of a batch can be
ROLES = (
    "data", "ids", "labels", "padding mask", "selection mask", "attention mask", "lengths", "positions", "documents",
    "unknown",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One tensor, array or list that a step reads.

    Attributes:
        name: its path in the batch, or ``ids of <path of the module>`` for what a module is given.
        shape: its shape; a list has its length.
        dtype: its dtype, without ``torch.``.
        role: one of :data:`ROLES`.
        recognised: how its role and padding were recognised; empty if they were not.
        samples: its axis of samples, None if there is none.
        positions: its axis of positions, None if there is none.
        examined: the experiments that changed it.
        option: the option with which it would be examined, if it may have padding and was not examined; else empty.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    recognised: str = ""
    samples: int | None = None
    positions: int | None = None
    examined: tuple[str, ...] = ()
    option: str = ""

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Part:
        """Rebuild a part from plain data; JSON has lists for tuples."""
        return cls(**{**plain, "shape": tuple(plain["shape"]), "examined": tuple(plain["examined"])})


@dataclass(frozen=True)
class Skipped:
    """An experiment that was asked for, or that the batch asks for, and was not made.

    Attributes:
        experiment: its name.
        why: the reason.
        option: what to add, such as an argument; empty if nothing helps.
    """

    experiment: str
    why: str
    option: str = ""

    def __str__(self) -> str:
        return f"{self.experiment}: {self.why}" + (f"; add {self.option}" if self.option else "")


def table_of(parts: Sequence[Part]) -> list[tuple[str, ...]]:
    """The rows of the inventory as text, the head first."""
    rows = [("name", "shape", "role", "recognised by", "samples", "positions", "examined by")]
    for part in parts:
        axes = ("" if axis is None else str(axis) for axis in (part.samples, part.positions))
        examined = ", ".join(part.examined) or (f"nothing; add {part.option}" if part.option else "")
        shape = f"{part.dtype} {'×'.join(map(str, part.shape)) or 'scalar'}"
        rows.append((part.name, shape, part.role, part.recognised, *axes, examined))
    return rows
