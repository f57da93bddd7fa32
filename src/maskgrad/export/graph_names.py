"""Names of inputs and outputs, written into a graph of ONNX whatever PyTorch's exporter called them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["ports_named"]


def ports_named(model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Call inputs and outputs so; what has such a name inside of the graph gets another one.

    PyTorch's exporter would take the names itself, but (2.13) no output by the name of an operation, such as ``where``.

    Args:
        model: an ``onnx_ir.Model``; it is changed.
        inputs: in the order of the inputs.
        outputs: in the order of the outputs.
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
