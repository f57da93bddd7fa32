"""The names of a graph's inputs and outputs: where they come from, and how they are written into it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from maskgrad.export.ports import Place, Ports

__all__ = ["Arguments", "Given", "argument_names", "input_names_of", "output_names_of", "ports_named"]

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
    # A mask gives way to an argument that has its name already: data is named first.
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
