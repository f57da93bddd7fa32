"""Ports: the named plain tensors that represent MaskedTensors in a graph.

Arguments and results are flattened as pytrees: a MaskedTensor is its data and its mask (or, on a sparse layout, its
stored values and their indices), a container its members. Everything else is a constant in the graph.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.storage import to_dense
from maskgrad.masked_tensor.tensor import of_entries, stored_of
from maskgrad.masked_tensor.torch_patches.pytrees import is_masked

__all__ = [
    "TENSOR", "Given", "Ports", "TensorPlace", "argument_names", "argument_of", "input_names_of",
    "name_ports", "output_names_of", "pack", "unpack",
]  # fmt: skip

#: Types of constants in arguments, which become part of the graph.
CONSTANTS = (
    *(type(None), bool, int, float, complex, str, bytes),
    *(torch.dtype, torch.device, torch.layout, enum.Enum),
)

#: Placeholder for a tensor among the leaves of a structure.
TENSOR = object()

#: Names from the user, one for each tensor or MaskedTensor.
Given = Sequence[str] | None


@dataclass(frozen=True)
class TensorPlace:
    """A tensor or MaskedTensor among arguments or results.

    Attributes:
        path: pytree keys that lead to it.
        roles: roles of its plain tensors; the empty one is that of the data.
    """

    path: pytree.KeyPath
    roles: tuple[str, ...]

    @property
    def is_masked(self) -> bool:
        """Return whether it has data and mask."""
        return self.roles == ("", "mask")

    @property
    def is_stored(self) -> bool:
        """Return whether it has the stored entries of a sparse layout."""
        return self.roles[0] == "values"


@dataclass(frozen=True)
class Ports:
    """Structure of arguments or results, for unpacking them to plain tensors and packing them again."""

    places: tuple[TensorPlace, ...]
    leaves: tuple[Any, ...]
    structure: pytree.TreeSpec

    def groups(self, tensors: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the plain tensors of each place."""
        rest = iter(tensors)
        return [tuple(next(rest) for _ in place.roles) for place in self.places]


def unpack(structure: Any, what: str) -> tuple[Ports, list[Tensor]]:
    """Unpack arguments or results. Unspecified entries of results are 0; jagged ones become padded batches.

    Raises:
        TypeError: something is not a tensor, MaskedTensor, constant or container of these, or has an unsupported dtype.
    """
    is_result = what == "output"
    structure = pytree.tree_map(lambda leaf: _in_a_file(leaf, is_result), structure, is_leaf=is_masked)
    places: list[TensorPlace] = []
    leaves: list[Any] = []
    tensors: list[Tensor] = []
    for path, leaf in pytree.tree_flatten_with_path(structure, is_leaf=is_masked)[0]:
        if isinstance(leaf, CONSTANTS):
            leaves.append(leaf)
            continue
        keys, parts = zip(*pytree.tree_flatten_with_path(leaf)[0], strict=True)
        _check(leaf, parts[0], what, path)
        roles = tuple([pytree.keystr(key).removeprefix(".") for key in keys])
        places.append(TensorPlace(path, ("", "mask") if roles == ("values", "mask") else roles))
        leaves += [TENSOR] * len(parts)
        tensors += parts
    return Ports(tuple(places), tuple(leaves), pytree.tree_structure(structure)), tensors


def pack(ports: Ports, tensors: Sequence[Tensor]) -> Any:
    """The inverse of :func:`unpack`."""
    rest = iter(tensors)
    leaves = [next(rest) if leaf is TENSOR else leaf for leaf in ports.leaves]
    return pytree.tree_unflatten(leaves, ports.structure)


def _in_a_file(leaf: Any, is_result: bool) -> Any:
    if not isinstance(leaf, MaskedTensor):
        return leaf
    if leaf.layout == torch.jagged:
        leaf = to_dense(leaf)
    if not is_result or stored_of(leaf) is not None:
        return leaf
    return of_entries(leaf.filled(False if leaf.dtype == torch.bool else 0), leaf._pattern.mask)


def _check(leaf: Any, values: Any, what: str, path: pytree.KeyPath) -> None:
    if what == "args":  # of (args, kwargs)
        what, path = ("args", "kwargs")[path[0].idx], path[1:]  # type: ignore[attr-defined]
    where = what + pytree.keystr(path)
    if not isinstance(values, Tensor):
        raise TypeError(
            f"{where} must be a torch.Tensor, a MaskedTensor, a number, a string, None or a container of these, found "
            f"{type(leaf).__name__}; convert it (torch.as_tensor, …), or make it an attribute of the model"
        )
    if values.layout != torch.strided:
        remedy = "return mg.from_sparse(x) or x.to_dense()" if what == "output" else "pass mg.from_sparse(x)"
        raise TypeError(f"{where} has layout {values.layout}, which ONNX graphs do not have; {remedy}")
    if values.is_complex():
        raise TypeError(
            f"{where} has dtype {values.dtype}, which ONNX graphs cannot take or return; pass torch.view_as_real(x), "
            "and use torch.view_as_complex or its inverse inside the model"
        )


def argument_names(function: Callable[..., Any], number: int) -> tuple[str, ...]:
    """Return the names of the first ``number`` positional arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of a builtin function
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [p.name for p in parameters if p.kind in positional]
    rest = next((p.name for p in parameters if p.kind == inspect.Parameter.VAR_POSITIONAL), "input")
    return tuple([*named, *(f"{rest}_{i}" for i in range(number))][:number])


def argument_of(path: pytree.KeyPath, arguments: Sequence[str]) -> str:
    """Return the name of the argument at a path in (args, kwargs)."""
    key: Any = path[1]
    return str(key.key) if isinstance(key, pytree.MappingKey) else arguments[key.idx]


def input_names_of(ports: Ports, arguments: Sequence[str], given: Given) -> tuple[str, ...]:
    """Return a name for each plain tensor: those of the ``arguments``, or the ``given`` ones."""
    stems = [argument_of(p.path, arguments) + pytree.keystr(p.path[2:]) for p in ports.places]
    return _names(ports, stems, given, "input_names", set())


def output_names_of(ports: Ports, given: Given, taken: Sequence[str]) -> tuple[str, ...]:
    """Return a name for each plain tensor: ``output``, ``output_0``, the key of a dict, or the ones ``given``."""
    stems = [pytree.keystr(p.path) for p in ports.places]
    stems = [s if re.match(r"\W*[^\W\d]", s) else f"output{s}" for s in stems]
    return _names(ports, stems, given, "output_names", set(taken))


def _names(ports: Ports, stems: list[str], given: Given, argument: str, taken: set[str]) -> tuple[str, ...]:
    if given is not None:
        return _given(ports.places, given, argument, taken)
    stems = ["_".join(re.findall(r"\w+", stem)) for stem in stems]
    # Data is named first: masks whose names are taken get another one.
    named = [_free(stem, taken) if "" in p.roles else "" for stem, p in zip(stems, ports.places, strict=True)]
    return tuple(
        [
            _free(f"{stem}_{role}", taken) if role else name
            for stem, name, place in zip(stems, named, ports.places, strict=True)
            for role in place.roles
        ]
    )


def _free(name: str, taken: set[str]) -> str:
    """Return ``name``, with a number appended if it is taken, and add it to ``taken``."""
    number, candidate = 1, name
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    taken.add(candidate)
    return candidate


def _given(places: Sequence[TensorPlace], given: Any, argument: str, taken: set[str]) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"{argument} must be a sequence of names, found {given!r}; use [{given!r}]")
    if len(given) != len(places):
        raise ValueError(
            f"{argument} must have one name for each tensor or MaskedTensor, {len(places)} here, found {len(given)}; "
            "the mask of 'x' is called 'x_mask'"
        )
    if not all(isinstance(name, str) and name for name in given):
        raise TypeError(
            f"{argument} must be a sequence of names, found {list(given)!r}; the mask of 'x' is 'x_mask'"
        )
    found = [
        f"{name}_{role}" if role else name
        for place, name in zip(places, given, strict=True)
        for role in place.roles
    ]
    twice = sorted({name for name in found if found.count(name) > 1 or name in taken})
    if twice:
        raise ValueError(
            f"{argument} must be distinct, also from the names of inputs and masks; found {twice[0]!r} more than once"
        )
    return tuple(found)


def name_ports(model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Rename inputs and outputs of an ``onnx_ir.Model``, in order; other values with such a name get another one.

    PyTorch's exporter accepts names, but (2.13) not the name of an operation, such as ``where``, for an output.
    """
    import onnx_ir

    graph = model.graph
    ports, names = [*graph.inputs, *graph.outputs], [*inputs, *outputs]
    nodes = onnx_ir.traversal.RecursiveGraphIterator(graph)
    values = [*graph.initializers.values(), *(value for node in nodes for value in node.outputs)]
    inner = [value for value in values if not any(value is port for port in ports)]
    taken = {*names, *(value.name for value in inner)}
    for value in inner:
        if value.name in names:
            value.name = _free(value.name, taken)
    for at, port in enumerate(ports):  # avoids conflicts between names of ports
        port.name = f"port {at}"
    for port, name in zip(ports, names, strict=True):
        port.name = name
