"""Ports: the named plain tensors through which MaskedTensors enter and leave a graph.

A graph knows plain tensors only. A MaskedTensor is its data and its mask (or, on a sparse layout, what is stored and
where); a container is its members; everything else is a constant that becomes part of the graph.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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

__all__ = [
    "Arguments",
    "Given",
    "Place",
    "Ports",
    "argument_names",
    "input_names_of",
    "output_names_of",
    "pack",
    "ports_named",
    "unpack",
]

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
        if self.facts is None or self.kind != "stored":
            return {"constant": (), "tensor": ("",), "masked": ("", "mask")}[self.kind]
        is_coo = self.facts.layout == "sparse_coo"
        return ("values", "indices") if is_coo else ("values", "pointers", "positions")


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
        TypeError: something is not a tensor, MaskedTensor, constant or container of these, or a tensor no graph knows.
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


Given = Sequence[str | Sequence[str]] | None


Arguments = dict[tuple[str, str], str]


def argument_names(function: Callable[..., Any], number: int, keywords: Iterable[str]) -> Arguments:
    """The name of each argument, under the first two steps of its path in (args, kwargs)."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of a builtin function
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [p.name for p in parameters if p.kind in positional]
    for variadic in [p.name for p in parameters if p.kind == inspect.Parameter.VAR_POSITIONAL]:
        named += [f"{variadic}_{i}" for i in range(number)]
    named += [f"input_{i}" for i in range(len(named), number)]
    names = {("0", str(i)): named[i] for i in range(number)}
    return names | {("1", key): key for key in keywords}


def input_names_of(ports: Ports, arguments: Arguments, given: Given) -> tuple[str, ...]:
    """A name for each plain tensor: those of the ``arguments``, or the ones that are ``given``."""

    def stem(place: Place) -> str:
        return "_".join([arguments[place.path[0], place.path[1]], *place.path[2:]])

    return _names(ports, stem, given, "input_names", set())


def output_names_of(ports: Ports, given: Given, taken: Sequence[str]) -> tuple[str, ...]:
    """A name for each plain tensor: ``output``, ``output_0``, the key of a dict, or the ones that are ``given``."""

    def stem(place: Place) -> str:
        name = "_".join(place.path)
        return "output" if not name else f"output_{name}" if name[0].isdigit() else name

    return _names(ports, stem, given, "output_names", set(taken))


def _names(
    ports: Ports, stem: Callable[[Place], str], given: Given, argument: str, taken: set[str]
) -> tuple[str, ...]:
    places = [place for place in ports.places if place.roles]
    if given is not None:
        return _given(places, given, argument, taken)
    stems = [re.sub(r"\W", "_", stem(place)) or "_" for place in places]
    taken = set(taken)
    # Data is named first: a mask whose name is taken gets another one.
    named = {at: _free(stems[at], taken) for at, place in enumerate(places) if "" in place.roles}
    return tuple(
        [
            _free(f"{stems[at]}_{role}", taken) if role else named[at]
            for at, place in enumerate(places)
            for role in place.roles
        ]
    )


def _free(name: str, taken: set[str]) -> str:
    """``name``, with a number behind it if it is taken; taken it is from now on."""
    number, candidate = 1, name
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    taken.add(candidate)
    return candidate


def _given(places: list[Place], given: Any, argument: str, taken: set[str]) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"{argument} must be a sequence of names, found {given!r}; write [{given!r}]")
    if len(given) != len(places):
        raise ValueError(
            f"{argument} must have one name for each tensor or MaskedTensor, {len(places)} here, found {len(given)}; "
            "the mask of 'x' is called 'x_mask' unless a pair of names is given"
        )
    found: list[str] = []
    for place, name in zip(places, given, strict=True):
        several: list[Any] = list(name) if isinstance(name, Sequence) else [None]
        if isinstance(name, str):
            several = [f"{name}_{role}" if role and name else name for role in place.roles]
        if len(several) != len(place.roles) or not all(isinstance(n, str) and n for n in several):
            raise ValueError(
                f"{argument}: expected a name, or {len(place.roles)} names, for "
                f"{place.kind} number {len(found)}, found {name!r}"
            )
        found += several
    twice = sorted({name for name in found if found.count(name) > 1 or name in taken})
    if twice:
        raise ValueError(
            f"{argument} must be distinct, also from the names of inputs and masks; found {twice[0]!r} more than once"
        )
    return tuple(found)


def ports_named(model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Rename inputs and outputs of an ``onnx_ir.Model``, in order; other values that have such a name get another one.

    PyTorch's exporter would take the names itself, but (2.13) no output by the name of an operation, such as ``where``.
    """
    ports = [*model.graph.inputs, *model.graph.outputs]
    names = [*inputs, *outputs]
    numbers = {id(port) for port in ports}
    inner = [value for value in _values(model) if id(value) not in numbers]
    taken = {*names, *(value.name for value in inner)}
    for value in inner:
        if value.name in names:
            number = 1
            while f"{value.name}_{number}" in taken:
                number += 1
            taken.add(f"{value.name}_{number}")
            _rename(model, value, f"{value.name}_{number}")
    for value, name in zip(ports, names, strict=True):
        _rename(model, value, name)


def _rename(model: Any, value: Any, name: str) -> None:
    held = value.name in model.graph.initializers and model.graph.initializers[value.name] is value
    if held:
        del model.graph.initializers[value.name]
    value.name = name
    if held:
        model.graph.register_initializer(value)


def _values(model: Any) -> Iterator[Any]:
    import onnx_ir

    yield from model.graph.inputs
    yield from model.graph.initializers.values()
    for node in onnx_ir.traversal.RecursiveGraphIterator(model.graph):
        yield from node.outputs
    for function in model.functions.values():
        yield from function.inputs
        for node in onnx_ir.traversal.RecursiveGraphIterator(function):
            yield from node.outputs
