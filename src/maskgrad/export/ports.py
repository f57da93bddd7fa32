"""Ports: the named plain tensors through which MaskedTensors enter and leave a graph.

A graph knows plain tensors only. A MaskedTensor is its data and its mask (or, on a sparse layout, what is stored and
where); a container is its members; everything else is a constant that becomes part of the graph.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.storage import to_dense
from maskgrad.masked_tensor.tensor import of_entries, stored_of
from maskgrad.patterns import Facts
from maskgrad.patterns.conversion import pattern_of_facts

__all__ = ["Place", "Ports", "pack", "unpack"]

#: What arguments may hold besides tensors; it becomes part of the graph.
CONSTANTS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.layout,
    enum.Enum,
)


@dataclass(frozen=True)
class Place:
    """One leaf of arguments or results.

    Attributes:
        path: where it stands, in words that a name can be made of (``("batch", "0")``).
        kind: ``"tensor"``, ``"masked"``, ``"stored"`` or ``"constant"``.
        facts: what is needed besides tensors to put a MaskedTensor together again.
        constant: the value of a constant.
    """

    path: tuple[str, ...]
    kind: str
    facts: Facts | None = None
    constant: Any = None

    @property
    def roles(self) -> tuple[str, ...]:
        """What is appended to the name of the leaf for each of its tensors."""
        if self.kind == "constant":
            return ()
        if self.kind == "tensor":
            return ("",)
        if self.kind == "masked":
            return ("", "mask")
        assert self.facts is not None
        return (
            ("values", "indices")
            if self.facts.layout == "sparse_coo"
            else ("values", "pointers", "positions")
        )


@dataclass(frozen=True)
class Ports:
    """How a structure of arguments or results is taken apart into plain tensors, and put together again."""

    places: tuple[Place, ...]
    structure: pytree.TreeSpec

    def groups(self, tensors: Sequence[Any]) -> list[tuple[Any, ...]]:
        """What belongs to each place."""
        found, at = [], 0
        for place in self.places:
            found.append(tuple(tensors[at : at + len(place.roles)]))
            at += len(place.roles)
        return found


def unpack(structure: Any, what: str) -> tuple[Ports, list[Tensor]]:
    """Take arguments or results apart; an unspecified entry of a result reads 0, so that no garbage leaves.

    Raises:
        TypeError: something is no tensor, MaskedTensor, constant or container of these, or a tensor no graph knows.
    """
    leaves, spec = pytree.tree_flatten_with_path(
        structure, is_leaf=lambda x: isinstance(x, (MaskedTensor, *CONSTANTS))
    )
    places, tensors = [], []
    for keys, leaf in leaves:
        path = tuple([_word(key) for key in keys])
        if isinstance(leaf, MaskedTensor):
            if leaf.layout == torch.jagged:  # a file takes and gives padded batches
                leaf = to_dense(leaf)  # noqa: PLW2901
            parts = _parts(leaf, filled=what == "output")
            places.append(
                Place(path, "masked" if stored_of(leaf) is None else "stored", leaf._pattern.facts())
            )
        elif isinstance(leaf, Tensor):
            if leaf.layout != torch.strided:
                remedy = (
                    "pass mg.from_sparse(x), whose stored entries become plain tensors of the graph"
                    if what == "args"
                    else "return mg.from_sparse(x) or x.to_dense()"
                )
                raise TypeError(
                    f"{_where(what, path)} has layout {leaf.layout}, which ONNX graphs do not have; {remedy}"
                )
            parts = [leaf]
            places.append(Place(path, "tensor"))
        elif isinstance(leaf, CONSTANTS):
            parts = []
            places.append(Place(path, "constant", constant=leaf))
        else:
            raise TypeError(
                f"{_where(what, path)} must be a torch.Tensor, a MaskedTensor, a number, a string, None or a "
                f"container of these, found {type(leaf).__name__}; convert it (torch.as_tensor, …), or make it an "
                "attribute of the model"
            )
        for part in parts:
            if part.is_complex():
                raise TypeError(
                    f"{_where(what, path)} has dtype {part.dtype}, which ONNX graphs cannot take or give; "
                    "pass torch.view_as_real(x), and begin or end the model with torch.view_as_complex or its inverse"
                )
        tensors += parts
    return Ports(tuple(places), spec), tensors


def pack(ports: Ports, tensors: Sequence[Tensor]) -> Any:
    """The inverse of :func:`unpack`."""
    leaves: list[Any] = []
    for place, group in zip(ports.places, ports.groups(tensors), strict=True):
        if place.kind == "constant":
            leaves.append(place.constant)
        elif place.kind == "tensor":
            leaves.append(group[0])
        elif place.kind == "masked":
            leaves.append(of_entries(*group))
        else:
            assert place.facts is not None
            leaves.append(MaskedTensor(group[0], pattern_of_facts(place.facts, group[1:])))
    return pytree.tree_unflatten(leaves, ports.structure)


def _parts(x: MaskedTensor, filled: bool) -> list[Tensor]:
    if stored_of(x) is not None:
        return [x._values, *x._pattern.tensors()]
    values, mask = x._dense()
    if filled:
        values = x.filled(False if values.dtype == torch.bool else 0)
    return [values, mask]


def _where(what: str, path: tuple[str, ...]) -> str:
    """``args[0]['x']``, as one would write it."""
    if what == "args":
        what, path = ("args", "kwargs")[int(path[0])], path[1:]
    return what + "".join([f"[{word}]" if word.isdigit() else f"[{word!r}]" for word in path])


def _word(key: Any) -> str:
    """One step of a path: the name of a field, a key of a dict, or a position."""
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
