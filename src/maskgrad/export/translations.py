"""Operators of ONNX for operations of PyTorch, where PyTorch's exporter chooses one that ONNX Runtime does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["translations"]


def translations() -> dict[Any, Callable[..., Any]]:
    """The body of each operation, for the ``custom_translation_table`` of ``torch.onnx.export``."""
    import onnx_ir
    from onnxscript import opset18, opset20

    volumes: Any = opset20
    op: Any = opset18  # operators that exist in a later opset under the same name are written for that one

    boolean = onnx_ir.DataType.BOOL

    #: What ONNX Runtime selects; other numbers make a detour.
    selected = {
        onnx_ir.DataType.FLOAT,
        onnx_ir.DataType.DOUBLE,
        onnx_ir.DataType.FLOAT16,
        onnx_ir.DataType.INT32,
        onnx_ir.DataType.INT64,
        onnx_ir.DataType.UINT8,
    }

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

    def channel_shuffle(self: Any, groups: Any) -> Any:
        batch_and_groups = op.Reshape(self, op.Constant(value_ints=[0, groups, self.shape[1] // groups, -1]))
        return op.Reshape(op.Transpose(batch_and_groups, perm=[0, 2, 1, 3]), op.Shape(self))

    def grid_sampler_3d(
        input: Any, grid: Any, interpolation_mode: Any, padding_mode: Any, align_corners: Any
    ) -> Any:
        return volumes.GridSample(
            input,
            grid,
            mode=("linear", "nearest", "cubic")[interpolation_mode],
            padding_mode=("zeros", "border", "reflection")[padding_mode],
            align_corners=int(align_corners),
        )

    aten = torch.ops.aten
    return {
        aten.where.self: where,
        aten.where.ScalarOther: where,
        aten.where.ScalarSelf: where,
        aten.where.Scalar: where,
        aten.native_channel_shuffle.default: channel_shuffle,
        aten.masked_fill.Scalar: masked_fill,
        aten.masked_fill.Tensor: masked_fill,
        aten.masked_select.default: masked_select,
        aten.grid_sampler_3d.default: grid_sampler_3d,
    }
