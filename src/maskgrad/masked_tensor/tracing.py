"""What torch.compile has to be told about a Tensor-like that is not a Tensor.

Dynamo (torch 2.9 to 2.13) traces ``masked @ tensor`` as ``Tensor.matmul(tensor, masked)``, the operands exchanged,
because ``operator.matmul`` is missing from its table of reflected operators; silently wrong for square matrices. The
same holds for ``masked @= tensor``. And it cannot trace ``masked @ masked`` at all, because matmul is missing from its
table of binary operators with user-defined operands; nor ``~masked``, for want of a handler. And it never calls the
``apply`` of a custom autograd function, so that MaskedTensors have to be refused once more (see foreign_functions.py).
All of it is supplied here, when (and only when) Dynamo itself is imported.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import operator
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

__all__ = ["install"]


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


def refuse_in_functions(misc: ModuleType) -> None:
    """Let Dynamo refuse a MaskedTensor in a custom autograd function, whose backward it would forget."""
    from maskgrad.masked_tensor.foreign_functions import reason_and_remedy
    from maskgrad.masked_tensor.tensor import MaskedTensor

    apply = misc.AutogradFunctionVariable.call_apply
    if hasattr(apply, "__wrapped__"):
        return

    @functools.wraps(apply)
    def call_apply(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        from torch._dynamo import exc
        from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

        for argument in (*args, *kwargs.values()):
            if isinstance(argument, UserDefinedObjectVariable) and argument.python_type() is MaskedTensor:
                unimplemented: Any = getattr(exc, "unimplemented_v2", exc.unimplemented)
                unimplemented(
                    gb_type="MaskedTensor in a custom autograd function",
                    context=f"{self.fn_cls.__name__}.apply",
                    explanation=reason_and_remedy(self.fn_cls),
                    hints=[],
                )
        return apply(self, tx, args, kwargs)

    misc.AutogradFunctionVariable.call_apply = call_apply


#: Which modules of Dynamo are completed, and how.
TARGETS: dict[str, Callable[[ModuleType], None]] = {
    "torch._dynamo.variables.builtin": complete_tables,
    "torch._dynamo.variables.misc": refuse_in_functions,
}


# ruff: noqa: ARG002  (the protocol of finders has more arguments than are needed)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds nothing itself: lets the others find a module of Dynamo, and completes it once it is executed."""

    def __init__(self, target: str) -> None:
        self.target = target

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.target:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            TARGETS[fullname](module)

        loader: Any = spec.loader
        loader.exec_module = exec_module
        return spec


def install() -> None:
    """Complete the modules of Dynamo now if they have been imported, else as soon as they are."""
    for target, complete in TARGETS.items():
        if target in sys.modules:
            complete(sys.modules[target])
        elif not any(
            isinstance(finder, _AfterImport) and finder.target == target for finder in sys.meta_path
        ):
            sys.meta_path.insert(0, _AfterImport(target))
