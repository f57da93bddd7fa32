"""The inventory: what a batch holds, what each part of it is taken for, and whether it was examined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.doctor.described import axes_of, role_of

if TYPE_CHECKING:
    from maskgrad.doctor.inferred import ObservedUse
    from maskgrad.doctor.packed import Documents
    from maskgrad.doctor.padding import Padding
    from maskgrad.doctor.roles import Roles

__all__ = ["ROLES", "Inventory", "Part", "Skipped", "table_of"]

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
        role: data, ids, labels, padding mask, selection mask, attention mask, lengths, positions, documents or
            unknown.
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
    rows: list[tuple[str, ...]] = [
        ("name", "shape", "role", "recognised by", "samples", "positions", "examined by")
    ]
    for part in parts:
        axes = ("" if axis is None else str(axis) for axis in (part.samples, part.positions))
        examined = ", ".join(part.examined) or (f"nothing; add {part.option}" if part.option else "")
        shape = f"{part.dtype} {'×'.join(map(str, part.shape)) or 'scalar'}"
        rows.append((part.name, shape, part.role, part.recognised, *axes, examined))
    return rows


class Inventory:
    """What is known of a batch, and what may be padded in it and is not known to be."""

    def __init__(
        self,
        roles: Roles,
        paddings: Sequence[Padding],
        use: ObservedUse | None = None,
        documents: Documents | None = None,
    ) -> None:
        self._roles, self._paddings, self._documents = (
            roles,
            {padding.key: padding for padding in paddings},
            documents,
        )
        read = use.read_of(roles.batch) if use is not None else set()
        self._unknown = use.unknown(roles.batch) if use is not None else {}
        self._candidates = roles.candidates(self._paddings, read)

    @property
    def is_incomplete(self) -> bool:
        """Whether something may be padded, and is not known to be."""
        return bool(self._candidates or self._unknown)

    def parts(self, examined: Mapping[Key, Sequence[str]]) -> list[Part]:
        """The parts, with the experiments that changed each."""
        found = []
        for key, held in fields(self._roles.batch).items():
            role, how = role_of(self._roles, key)
            padding = self._paddings.get(key)
            if padding is not None and role not in ("labels", "positions", "documents"):
                role = "data" if tensor_of(held).is_floating_point() else "ids"
            if self._documents is not None and key == self._documents.key:
                role, how = "documents", self._documents.source
            option = self._candidates.get(key)
            samples, positions = axes_of(self._roles, key)
            found.append(
                Part(
                    str(key),
                    tuple(held.shape),
                    str(tensor_of(held).dtype).removeprefix("torch."),
                    role,
                    how if padding is None else padding.source,
                    samples,
                    positions,
                    tuple(examined.get(key, ())),
                    "" if option is None else f"padding={{{key!r}: {option}}}",
                )
            )
        for name, read in self._unknown.items():
            why = f"padding_idx={read.padding_idx} of its table; it is no part of the batch"
            option = f"these ids to the batch, or padding_idx={read.padding_idx} to their key"
            found.append(
                Part(
                    name,
                    tuple(read.ids.shape),
                    str(read.ids.dtype).removeprefix("torch."),
                    "ids",
                    why,
                    0,
                    1,
                    (),
                    option,
                )
            )
        return found
