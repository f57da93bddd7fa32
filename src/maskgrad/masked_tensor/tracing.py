"""What torch.compile has to be told about a Tensor-like that is not a Tensor.

Dynamo (torch 2.9 to 2.13) traces ``masked @ tensor`` as ``Tensor.matmul(tensor, masked)``, the operands exchanged,
because ``operator.matmul`` is missing from its table of reflected operators; silently wrong for square matrices. The
same holds for ``masked @= tensor``. And it cannot trace ``masked @ masked`` at all, because matmul is missing from its
table of binary operators with user-defined operands; nor ``~masked``, for want of a handler. All of it is supplied
here, when (and only when) Dynamo itself is imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import operator
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

__all__ = ["install"]

TARGET = "torch._dynamo.variables.builtin"


def complete_tables(builtin: ModuleType) -> None:
    """Teach Dynamo's module of builtins about matmul and invert."""
    for product in (operator.matmul, operator.imatmul):
        builtin.BUILTIN_TO_TENSOR_RFN_MAP[product] = torch.Tensor.__rmatmul__
    binary = builtin.BuiltinVariable._binops()
    if operator.matmul not in binary:
        binary[operator.matmul] = (["__matmul__", "__rmatmul__", "__imatmul__"], operator.imatmul)
        builtin.BuiltinVariable._binop_handlers.cache_clear()
    if not hasattr(builtin.BuiltinVariable, "call_invert"):
        builtin.BuiltinVariable.call_invert = _call_invert


def _call_invert(self: Any, tx: Any, operand: Any) -> Any:
    """``~object`` is its method ``__invert__``; None lets Dynamo go on as before with everything else."""
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    return (
        operand.call_method(tx, "__invert__", [], {})
        if isinstance(operand, UserDefinedObjectVariable)
        else None
    )


# ruff: noqa: ARG002  (the protocol of finders has more arguments than are needed)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds nothing itself: lets the others find Dynamo's module, and completes its tables once it is executed."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            complete_tables(module)

        loader: Any = spec.loader
        loader.exec_module = exec_module
        return spec


def install() -> None:
    """Complete the tables now if Dynamo has been imported, else as soon as it is."""
    if TARGET in sys.modules:
        complete_tables(sys.modules[TARGET])
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
