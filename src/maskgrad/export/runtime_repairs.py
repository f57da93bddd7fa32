"""Graphs that mean the same, and that ONNX Runtime does not get wrong."""

from __future__ import annotations

from typing import Any

__all__ = ["repaired"]


def repaired(model: Any) -> Any:
    """Reductions count their axes from the front, also those to a position.

    Of a tensor without entries ONNX Runtime (1.31) reduces no axis that is counted from the back: (0, 5, 4) by axis −1
    stays (0, 5, 4), and an empty batch fails somewhere later.

    Args:
        model: an ``onnx_ir.Model``; it is changed.
    """
    axes: dict[tuple[int, ...], Any] = {}
    for node in model.graph:
        if node.op_type in ("ArgMax", "ArgMin"):
            _count_attribute(node)
        if not node.op_type.startswith("Reduce") or len(node.inputs) < 2 or node.inputs[1] is None:
            continue
        given, rank = node.inputs[1].const_value, node.inputs[0].shape
        if given is None or rank is None:
            continue
        numbers = [int(axis) for axis in given.numpy().reshape(-1)]
        if any(axis < 0 for axis in numbers):
            counted = tuple([axis % len(rank) for axis in numbers])
            if counted not in axes:
                axes[counted] = _initializer(model, counted)
            before = node.inputs[1]
            node.replace_input_with(1, axes[counted])
            if before.name in model.graph.initializers and not before.uses():
                del model.graph.initializers[before.name]
    return model


def _count_attribute(node: Any) -> None:
    import onnx_ir

    axis, shape = node.attributes.get("axis"), node.inputs[0].shape
    if axis is not None and shape is not None and axis.as_int() < 0:
        node.attributes["axis"] = onnx_ir.AttrInt64("axis", axis.as_int() % len(shape))


def _initializer(model: Any, numbers: tuple[int, ...]) -> Any:
    import onnx_ir

    name = "axes_" + "_".join(map(str, numbers))
    tensor = onnx_ir.tensor(list(numbers), dtype=onnx_ir.DataType.INT64, name=name)
    value = onnx_ir.Value(
        name=name,
        const_value=tensor,
        type=onnx_ir.TensorType(onnx_ir.DataType.INT64),
        shape=onnx_ir.Shape([len(numbers)]),
    )
    model.graph.register_initializer(value)
    return value
