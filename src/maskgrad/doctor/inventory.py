"""The inventory: what a batch holds, the role and the axes of each part, and whether it was examined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.doctor.packed import is_structure
from maskgrad.doctor.roles import Roles
from maskgrad.doctor.signs import LABELS, LENGTHS, PADS, PAIRS, is_selection

if TYPE_CHECKING:
    from maskgrad.doctor.inferred import ObservedUse
    from maskgrad.doctor.packed import Documents
    from maskgrad.doctor.padding import Padding

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
    def of(cls, name: Key, held: Any, role: str, recognised: str = "", **rest: Any) -> Part:
        """The part that a tensor is."""
        dtype = str(tensor_of(held).dtype).removeprefix("torch.")
        return cls(str(name), tuple(held.shape), dtype, role, recognised, **rest)


@dataclass(frozen=True)
class Skipped:
    """An experiment that was requested, or that the batch needs, and was not made.

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
        self._roles, self._documents = roles, documents
        self._paddings = {padding.key: padding for padding in paddings}
        read = use.read_of(roles.batch) if use is not None else set()
        self._unknown = use.unknown(roles.batch) if use is not None else {}
        self._candidates = roles.candidates(self._paddings, read)

    def parts(self, examined: Mapping[Key, Sequence[str]]) -> list[Part]:
        """The parts, with the experiments that changed each."""
        found = []
        for key, held in fields(self._roles.batch).items():
            role, how = _role_of(self._roles, key)
            padding = self._paddings.get(key)
            if padding is not None and role not in ("labels", "positions", "documents"):
                role = "data" if tensor_of(held).is_floating_point() else "ids"
            if self._documents is not None and key == self._documents.key:
                role, how = "documents", self._documents.source
            samples, positions = _axes_of(self._roles, key)
            rest: dict[str, Any] = {"samples": samples, "positions": positions}
            if key in self._candidates:
                rest["option"] = f"padding={{{key!r}: {self._candidates[key]}}}"
            how = how if padding is None else padding.source
            found.append(Part.of(key, held, role, how, examined=tuple(examined.get(key, ())), **rest))
        for name, read in self._unknown.items():
            how = f"padding_idx={read.padding_idx} of its table; it is no part of the batch"
            option = f"these ids to the batch, or padding_idx={read.padding_idx} to their key"
            found.append(Part.of(name, read.ids, "ids", how, samples=0, positions=1, option=option))
        return found


def _role_of(roles: Roles, key: Key) -> tuple[str, str]:
    """The role of a tensor, and how that was recognised."""
    held, name = roles.inside[key], str(key)
    of = next((padding for padding in roles.paddings if key in padding.mask_values), None)
    if key in roles.masks:
        if of is not None:
            return (
                "padding mask",
                f"what it covers in {of.key!r} is alike"
                if key in roles.proven
                else f"the padding of {of.key!r}",
            )
        core = roles.masks[key].core
        pairs = core.ndim > 1 and core.shape[-1] == core.shape[-2]
        if pairs or (PAIRS.search(name) and core.ndim > 2):
            return "attention mask", "its shape"
        if PADS.search(name) and not is_selection(key, "") and (bool(core.all()) or not bool(core.any())):
            return "padding mask", "its name; it covers nothing"
        return "selection mask", "two values"
    if key in roles.lengths and (of is not None or LENGTHS.search(name)):
        return "lengths", f"the ends of {of.key!r}" if of is not None else "its name"
    own = next((padding for padding in roles.paddings if padding.key == key), None)
    source = "" if own is None else own.source
    tensor = tensor_of(held)
    if is_structure(key) and "mask" not in name:
        return ("positions" if "pos" in name else "documents"), source or "its name"
    if LABELS.search(name) or source.startswith("labels"):
        return "labels", source or "its name"
    if tensor.ndim < 2:
        return ("labels" if not tensor.is_floating_point() else "data"), source or "its shape"
    if tensor.is_floating_point() or tensor.is_complex():
        return "data", source
    return "ids", source


def _axes_of(roles: Roles, key: Key) -> tuple[int | None, int | None]:
    """The axes of samples and positions of a tensor that has them."""
    shape = tensor_of(roles.inside[key]).shape
    if key in roles.positions:
        positions = roles.positions[key]
        return roles.samples[key], positions[0] if positions else None
    if not shape:
        return None, None
    lengths = {tensor_of(roles.inside[k]).shape[p] for k, ps in roles.positions.items() for p in ps}
    along = next((axis for axis, size in enumerate(shape) if axis and size in lengths), None)
    return 0, along if along is not None else 1 if len(shape) > 1 and key not in roles.masks else None
