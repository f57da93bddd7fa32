"""Translation of programs of torch.export to ONNX graphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from maskgrad.errors import NotExportableError
from maskgrad.export.decompositions import decomposed
from maskgrad.export.ports import name_ports

__all__ = ["causes", "translated"]


def translations() -> dict[Any, Callable[..., Any]]:
    """Return translations of operations, for the ``custom_translation_table`` of ``torch.onnx.export``."""
    import onnx_ir
    from onnxscript import opset18

    op: Any = opset18  # operators with the same name in a later opset are exported for that one

    boolean = onnx_ir.DataType.BOOL

    #: Types supported by ``Where`` of ONNX Runtime; others are cast.
    selected = {onnx_ir.DataType[name] for name in ("FLOAT", "DOUBLE", "FLOAT16", "INT32", "INT64", "UINT8")}

    def where(condition: Any, self: Any, other: Any) -> Any:
        dtype = next((operand.dtype for operand in (self, other) if hasattr(operand, "dtype")), None)
        if dtype == boolean:
            return op.Or(op.And(condition, self), op.And(op.Not(condition), other))
        if dtype is None or dtype in selected:
            return op.Where(condition, self, other)
        wide = onnx_ir.DataType.FLOAT if dtype == onnx_ir.DataType.BFLOAT16 else onnx_ir.DataType.INT64
        return op.Cast(op.Where(condition, op.Cast(self, to=wide), op.Cast(other, to=wide)), to=dtype)

    def masked_fill(self: Any, mask: Any, value: Any) -> Any:
        return where(mask, op.CastLike(value, self), self)

    def masked_select(self: Any, mask: Any) -> Any:
        wide = op.Expand(self, op.Shape(mask))
        chosen = op.Expand(mask, op.Shape(wide))
        return op.Compress(wide, op.Reshape(chosen, op.Constant(value_ints=[-1])))

    aten = torch.ops.aten
    scalars = ("Scalar", "ScalarOther", "ScalarSelf")
    return {
        **dict.fromkeys((getattr(aten.where, overload) for overload in ("self", *scalars)), where),
        aten.masked_fill.Scalar: masked_fill,
        aten.masked_fill.Tensor: masked_fill,
        aten.masked_select.default: masked_select,
    }


def repaired(model: Any) -> Any:
    """Make reductions count their axes from the front, in an ``onnx_ir.Model`` and the bodies of its loops, in place.

    For empty tensors ONNX Runtime (1.31) ignores axes counted from the back: (0, 5, 4) reduced along axis −1
    stays (0, 5, 4), and an empty batch fails somewhere later.
    """
    import onnx_ir

    axes: dict[tuple[int, ...], Any] = {}
    nodes: Any = onnx_ir.traversal.RecursiveGraphIterator(model.graph)
    for node in nodes:
        first = node.inputs[0] if node.inputs else None  # None if left out, as a loop's number of turns
        rank, axis = None if first is None else first.shape, node.attributes.get("axis")
        if (
            node.op_type in ("ArgMax", "ArgMin")
            and axis is not None
            and rank is not None
            and axis.as_int() < 0
        ):
            node.attributes["axis"] = onnx_ir.AttrInt64("axis", axis.as_int() % len(rank))
        if not node.op_type.startswith("Reduce") or len(node.inputs) < 2 or node.inputs[1] is None:
            continue
        given = node.inputs[1].const_value
        if given is None or rank is None:
            continue
        numbers = [int(axis) for axis in given.numpy().reshape(-1)]
        if any(axis < 0 for axis in numbers):
            counted = tuple([axis % len(rank) for axis in numbers])
            if counted not in axes:
                axes[counted] = _initializer(model, counted)
            before = node.inputs[1]
            node.replace_input_with(1, axes[counted])
            if before.name in node.graph.initializers and not before.uses():
                del node.graph.initializers[before.name]
    return model


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


#: Supported by ONNX Runtime since 1.17.
OPSET = 20


def translated(
    program: torch.export.ExportedProgram,
    input_names: Sequence[str],
    output_names: Sequence[str],
    opset_version: int | None,
) -> Any:
    """Translate a program to a ``torch.onnx.ONNXProgram``.

    Raises:
        NotExportableError: ONNX has no operator for an operation of the program.
        ValueError: the opset does not support the program.
    """
    try:
        written: Any = torch.onnx.export(
            decomposed(program),
            (),
            dynamo=True,
            opset_version=OPSET if opset_version is None else opset_version,
            custom_translation_table=translations(),
            verbose=False,
        )
    except torch.onnx.errors.OnnxExporterError as error:
        raise NotExportableError(
            _operation(error),
            "ONNX has no operators for it",
            "Compute it outside the exported model, or with equivalent operations",
        ) from error
    name_ports(written.model, input_names, output_names)
    repaired(written.model)
    found = written.model.opset_imports[""]
    if opset_version is not None and found != opset_version:
        raise ValueError(
            f"opset_version must be {found} or higher for this model, found {opset_version}; "
            f"pass opset_version={found}, or None for {OPSET}"
        )
    return written


def _operation(error: BaseException) -> str:
    """Return the operation named in the message of the exporter or of a cause."""
    for cause in causes(error):
        named = re.search(r"OpOverload\(op='([\w.:]+)', overload='(\w+)'\)", str(cause)) or re.search(
            r"target=(aten\.\w+)\.(\w+)", str(cause)
        )
        if named:
            return f"torch.ops.{named[1].replace('::', '.')}"
    return "an operation of the model"


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error`` and its causes."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
