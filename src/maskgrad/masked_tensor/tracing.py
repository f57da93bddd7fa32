"""What torch.compile has to be told about a Tensor-like that is not a Tensor.

Dynamo (torch 2.9 to 2.13) traces ``masked @ tensor`` as ``Tensor.matmul(tensor, masked)``, the operands exchanged,
because ``operator.matmul`` is missing from its table of reflected operators; silently wrong for square matrices. The
same holds for ``masked @= tensor``. And it cannot trace ``masked @ masked`` at all, because matmul is missing from its
table of binary operators with user-defined operands; nor ``~masked``, for want of a handler. And it never calls the
``apply`` of a custom autograd function, so that MaskedTensors have to be refused once more (see foreign_functions.py).
It turns ``masked += tensor`` into ``masked = masked + tensor``, which other names of the tensor would not notice.
It looks for Tensor-likes in lists, but not in tuples (``torch.cat((x, y))``), and asks only those functions that are
in a list of its own, without ``torch.fill``, ``torch.normal``, ``F.hardswish`` and some others.
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
    keep_in_place(builtin)
    replace_numbers(builtin)


def replace_numbers(builtin: ModuleType) -> None:
    """Let ``number **= masked`` be ``number = number ** masked``: Dynamo asks the number for ``__ipow__``."""
    handlers = builtin.BuiltinVariable._binop_handlers
    if hasattr(handlers, "of_torch"):
        return

    @functools.cache
    def complete_handlers() -> Any:
        from torch._dynamo.variables.constant import ConstantVariable
        from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

        def replace(tx: Any, number: Any, operand: Any, usual: Any) -> Any:
            if _is_masked(operand):
                return builtin.BuiltinVariable(usual).call_function(tx, [number, operand], {})
            return None

        table = handlers()
        for in_place, usual in getattr(builtin, "IN_PLACE_DESUGARING_MAP", {}).items():
            kinds = (ConstantVariable, UserDefinedObjectVariable)
            if in_place in table:
                table[in_place].insert(0, (kinds, functools.partial(replace, usual=usual)))
        return table

    complete_handlers.of_torch = handlers  # type: ignore[attr-defined]
    builtin.BuiltinVariable._binop_handlers = staticmethod(complete_handlers)


def keep_in_place(builtin: ModuleType) -> None:
    """Let ``masked += tensor`` and ``tensor += masked`` be what Python makes of them: the first one writes."""
    insert = getattr(builtin.BuiltinVariable, "_handle_insert_op_in_graph", None)
    usual = getattr(builtin, "IN_PLACE_DESUGARING_MAP", {})
    if insert is None or hasattr(insert, "__wrapped__"):
        return

    @functools.wraps(insert)
    def insert_op(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        from torch._dynamo.variables.tensor import TensorVariable

        if self.fn in usual and len(args) == 2 and not kwargs:
            target, operand = args
            if _is_masked(target):
                return target.call_method(tx, f"__{self.fn.__name__}__", [operand], {})
            if _is_masked(operand) and isinstance(target.realize(), TensorVariable):
                # which cannot take what is masked: a new object it is
                ordinary = getattr(operator, f"__{self.fn.__name__[1:]}__")
                return type(self)(ordinary).call_function(tx, [target, operand], {})
        return insert(self, tx, args, kwargs)

    builtin.BuiltinVariable._handle_insert_op_in_graph = insert_op
    builtin.BuiltinVariable.call_function_handler_cache.clear()  # it holds the method as it was


def _is_masked(variable: Any) -> bool:
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    from maskgrad.masked_tensor.tensor import MaskedTensor

    variable = variable.realize()
    return isinstance(variable, UserDefinedObjectVariable) and variable.python_type() is MaskedTensor


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

    apply = misc.AutogradFunctionVariable.call_apply
    if hasattr(apply, "__wrapped__"):
        return

    @functools.wraps(apply)
    def call_apply(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if any(_is_masked(argument) for argument in (*args, *kwargs.values())):
            what = "MaskedTensor in a custom autograd function"
            _refuse(what, f"{self.fn_cls.__name__}.apply", reason_and_remedy(self.fn_cls))
        return apply(self, tx, args, kwargs)

    misc.AutogradFunctionVariable.call_apply = call_apply


def _refuse(kind: str, context: str, explanation: str) -> None:
    """Break the graph in the way of Dynamo: an error where there must be one graph, plain Python elsewhere."""
    from torch._dynamo import exc

    unimplemented: Any = getattr(exc, "unimplemented_v2", exc.unimplemented)
    unimplemented(gb_type=kind, context=context, explanation=explanation, hints=[])


def tell_refusals(user_defined: ModuleType) -> None:
    """Let Dynamo pass on what our errors say, whose constructors it cannot trace."""
    from maskgrad.errors import MaskgradError

    classes = user_defined.UserDefinedClassVariable
    call = classes.call_function
    if hasattr(call, "__wrapped__"):
        return

    @functools.wraps(call)
    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        kind = self.value
        if isinstance(kind, type) and issubclass(kind, MaskgradError):
            _refuse(kind.__name__, kind.__name__, _words(kind, args, kwargs))
        return call(self, tx, args, kwargs)

    classes.call_function = call_function


def _words(kind: type[Exception], args: Any, kwargs: Any) -> str:
    """The message of an error, as far as its arguments are known while a graph is traced."""
    try:
        known = {name: value.as_python_constant() for name, value in kwargs.items()}
        return str(kind(*(value.as_python_constant() for value in args), **known))
    except Exception:  # whatever Dynamo raises for what it does not know yet: the refusal itself must arrive
        return kind.__doc__ or kind.__name__


def look_into_tuples(torch_function: ModuleType) -> None:
    """Let Dynamo find a Tensor-like in a tuple of arguments, as it does in a list."""
    flatten = getattr(torch_function, "_flatten_vts", None)
    if flatten is None or hasattr(flatten, "__wrapped__"):
        return

    @functools.wraps(flatten)
    def flatten_with_tuples(variables: Any) -> list[Any]:
        from torch._dynamo.variables.lists import TupleVariable

        found: list[Any] = []
        for variable in flatten(variables):
            is_tuple = variable.is_realized() and isinstance(variable, TupleVariable)
            found.extend(flatten_with_tuples(variable.items) if is_tuple else [variable])
        return found

    torch_function._flatten_vts = flatten_with_tuples  # type: ignore[attr-defined]


def ask_for_more_functions(functions: ModuleType) -> None:
    """Let Dynamo ask Tensor-likes in every function that has a record; its set of them is made once and kept."""
    from maskgrad.masked_tensor.dispatch import BY_FUNCTION

    known = getattr(functions, "get_overridable_functions", None)
    if known is not None:
        known().update(function for function in BY_FUNCTION if callable(function))


#: Which modules of Dynamo are completed, and how.
TARGETS: dict[str, Callable[[ModuleType], None]] = {
    "torch._dynamo.variables.torch": ask_for_more_functions,
    "torch._dynamo.variables.torch_function": look_into_tuples,
    "torch._dynamo.variables.builtin": complete_tables,
    "torch._dynamo.variables.misc": refuse_in_functions,
    "torch._dynamo.variables.user_defined": tell_refusals,
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
