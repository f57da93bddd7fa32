"""Extensions of Dynamo for a Tensor-like that is not a Tensor.

Each function here extends one table or method of Dynamo; ``table.py`` explains why. They run
only when Dynamo itself is imported.
"""

from __future__ import annotations

import functools
import importlib
import operator
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from maskgrad.masked_tensor.dispatch import BY_FUNCTION
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.autograd_functions import reason_and_remedy
from maskgrad.masked_tensor.torch_patches.patch import exchange
from maskgrad.versions import is_before, release

__all__ = [
    "ask_for_more_functions",
    "do_not_trace",
    "find_in_tuples",
    "guard_without_ours",
    "invert",
    "is_since",
    "keep_in_place",
    "knows_invert",
    "multiply_matrices",
    "numbers_on_the_left",
    "refuse_in_functions",
    "start_nowhere_within",
]


def _variables(kind: str) -> Any:
    """Return a module of Dynamo's variables, untyped."""
    return importlib.import_module(f"torch._dynamo.variables.{kind}")


def _exchange(path: str, function: Any) -> None:
    exchange(f"torch._dynamo.{path}", function, everywhere=False)


def multiply_matrices() -> None:
    """Reflect ``tensor @ masked``, and let ``masked @ masked`` call the operands' methods as other operators do."""
    builtin = _variables("builtin")
    for product in (operator.matmul, operator.imatmul):
        builtin.BUILTIN_TO_TENSOR_RFN_MAP[product] = torch.Tensor.__rmatmul__
    binary = builtin.BuiltinVariable._binops()
    if operator.matmul not in binary:
        binary[operator.matmul] = (["__matmul__", "__rmatmul__", "__imatmul__"], operator.imatmul)
        builtin.BuiltinVariable._binop_handlers.cache_clear()


def knows_invert() -> bool:
    """Return whether Dynamo supports ``~object``."""
    return hasattr(_variables("builtin").BuiltinVariable, "call_invert")


def is_since(version: str) -> bool:
    """Return whether Dynamo is that of this PyTorch or a later one; no attribute shows it."""
    return not is_before(release(torch.__version__), version)


def invert() -> None:
    """Let ``~object`` be its method ``__invert__``; None leaves other cases to Dynamo."""

    def call_invert(self: Any, tx: Any, operand: Any) -> Any:
        is_object = isinstance(operand, _variables("user_defined").UserDefinedObjectVariable)
        return operand.call_method(tx, "__invert__", [], {}) if is_object else None

    _variables("builtin").BuiltinVariable.call_invert = call_invert


#: Method of the right operand for an operator with a number on the left.
_REFLECTED = {
    operator.and_: "__rand__",
    operator.or_: "__ror__",
    operator.xor: "__rxor__",
    operator.lshift: "__rlshift__",
    operator.rshift: "__rrshift__",
    operator.eq: "__eq__",
    operator.ne: "__ne__",
    operator.lt: "__gt__",
    operator.le: "__ge__",
    operator.gt: "__lt__",
    operator.ge: "__le__",
}


def numbers_on_the_left() -> None:
    """Reflect ``number < masked`` and ``number & masked``, and let ``number **= masked`` create a new object."""
    builtin = _variables("builtin")
    handlers = builtin.BuiltinVariable._binop_handlers

    @functools.cache
    def complete_handlers() -> Any:
        def reflect(tx: Any, number: Any, operand: Any, name: str) -> Any:
            return operand.call_method(tx, name, [number], {}) if _is_masked(operand) else None

        def replace(tx: Any, number: Any, operand: Any, usual: Any) -> Any:
            if _is_masked(operand):
                return builtin.BuiltinVariable(usual).call_function(tx, [number, operand], {})
            return None

        found = [(f, functools.partial(reflect, name=name)) for f, name in _REFLECTED.items()]
        found += [
            (in_place, functools.partial(replace, usual=usual))
            for in_place, usual in builtin.IN_PLACE_DESUGARING_MAP.items()
        ]
        kinds = (
            _variables("constant").ConstantVariable,
            _variables("user_defined").UserDefinedObjectVariable,
        )
        table = handlers()
        for function, handler in found:
            table.setdefault(function, []).insert(0, (kinds, handler))
        return table

    builtin.BuiltinVariable._binop_handlers = staticmethod(complete_handlers)


def keep_in_place() -> None:
    """Let ``masked += tensor`` and ``tensor += masked`` do the same as in Python: the first one writes."""
    kind = _variables("builtin").BuiltinVariable
    usual = _variables("builtin").IN_PLACE_DESUGARING_MAP

    def insert_op(insert: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn in usual and len(args) == 2 and not kwargs:
            target, operand = args
            if _is_masked(target):
                return target.call_method(tx, f"__{self.fn.__name__}__", [operand], {})
            if _is_masked(operand) and isinstance(target.realize(), _variables("tensor").TensorVariable):
                # which cannot become masked: return a new object
                ordinary = getattr(operator, f"__{self.fn.__name__[1:]}__")
                return type(self)(ordinary).call_function(tx, [target, operand], {})
        return insert(self, tx, args, kwargs)

    _exchange("variables.builtin.BuiltinVariable._handle_insert_op_in_graph", insert_op)
    kind.call_function_handler_cache.clear()  # it contains the old method


def _is_masked(variable: Any) -> bool:
    variable = variable.realize()
    is_object = isinstance(variable, _variables("user_defined").UserDefinedObjectVariable)
    return is_object and variable.python_type() is MaskedTensor


def refuse_in_functions() -> None:
    """Let Dynamo refuse a MaskedTensor in a custom autograd function, whose backward it would ignore."""
    from torch._dynamo import exc

    def call_apply(apply: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if any(_is_masked(argument) for argument in (*args, *kwargs.values())):
            exc.unimplemented(
                gb_type="MaskedTensor in a custom autograd function",
                context=f"{self.fn_cls.__name__}.apply",
                explanation=reason_and_remedy(self.fn_cls),
                hints=[],
            )
        return apply(self, tx, args, kwargs)

    _exchange("variables.misc.AutogradFunctionVariable.call_apply", call_apply)


def find_in_tuples() -> None:
    """Let Dynamo find a Tensor-like in a tuple of arguments, as it does in a list."""

    def flatten_with_tuples(flatten: Any, variables: Any) -> list[Any]:
        kind = _variables("lists").TupleVariable
        found: list[Any] = []
        for variable in flatten(variables):
            is_tuple = variable.is_realized() and isinstance(variable, kind)
            found.extend(flatten_with_tuples(flatten, variable.items) if is_tuple else [variable])
        return found

    _exchange("variables.torch_function._flatten_vts", flatten_with_tuples)


def ask_for_more_functions() -> None:
    """Let Dynamo call ``__torch_function__`` for every function that has a binding; it has one set of them."""
    _variables("torch").get_overridable_functions().update(
        function for function in BY_FUNCTION if callable(function)
    )


#: This package, and its folder.
_NAME = __name__.partition(".")[0]
_OURS = str(Path(__file__).parents[2]).replace("\\", "/") + "/"


def start_nowhere_within() -> None:
    """Let Dynamo begin no graph in a frame of this package; graphs of callers may still include them.

    After a graph break in a caller, our functions are called from plain Python. Dynamo would compile each frame
    separately, and reuse the graph of ``Tensor.sub`` for ``Tensor.add``: it has no guards on methods of Tensor
    (https://github.com/pytorch/pytorch/issues/197811). A function of ours that is compiled explicitly is traced into a
    frame of Dynamo's own, as those of torch.
    """
    rules: Any = importlib.import_module("torch._dynamo.trace_rules")
    types: Any = importlib.import_module("torch._dynamo.types")

    def check_file(check: Any, filename: Any, is_inlined_call: bool = False) -> Any:
        if not is_inlined_call and str(filename).replace("\\", "/").startswith(_OURS):
            return rules.SkipResult(True, "frames of maskgrad are not compiled separately")
        return check(filename, is_inlined_call)

    def convert_frame(convert: Any, self: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        # by the module: code generated by dataclasses has no file
        if str(frame.f_globals.get("__name__")).partition(".")[0] == _NAME:
            return types.ConvertFrameReturn()
        return convert(self, frame, cache_entry, frame_state)

    _exchange("trace_rules.check_file", check_file)
    _exchange("convert_frame.CatchErrorsWrapper.__call__", convert_frame)


def guard_without_ours(add: Any, self: Any, guard: Any, **options: Any) -> None:
    """Skip guards of compiled functions on functions and tables of this package.

    A graph of three operations has up to 300 of them, which take 20 µs, mostly for tables.
    """
    if not _is_fixed(guard.originating_source):
        add(self, guard, **options)


#: Modules and functions of torch that return its state, and do not compute.
_STATE = (torch.compiler, torch._C, torch.is_grad_enabled)


def _is_fixed(source: Any) -> bool:
    """Return whether a source is a module of ours, or a constant in it."""
    path: list[Any] = []
    while (base := getattr(source, "base", None)) is not None:
        path.append(source)
        source = base
    alias = str(getattr(source, "global_name", ""))  # Dynamo's name for a module with traced functions
    if not alias.startswith(f"__import_{_NAME}") or not path:
        return alias.startswith(f"__import_{_NAME}")
    module = sys.modules.get(alias.removeprefix("__import_").replace("_dot_", "."))
    value = getattr(module, getattr(path[-1], "member", ""), None)
    if isinstance(value, ModuleType) and value.__name__.partition(".")[0] != _NAME:
        # Functions of torch that compute may be replaced; its modules, types and questions about the state are not.
        part = getattr(value, getattr(path[-2], "member", ""), None) if len(path) > 1 else value
        is_fixed = len(path) <= 2 and isinstance(part, (ModuleType, type, torch.dtype, torch.layout))
        return is_fixed or part in _STATE
    return not isinstance(value, (list, set, torch.Tensor))  # lists determine the contexts of tracing


def do_not_trace(reason: str) -> None:
    """Break graphs at MaskedTensors: with an incomplete table, compiled graphs could be wrong."""
    methods: Any = importlib.import_module("maskgrad.masked_tensor.methods")
    methods.dispatch = torch.compiler.disable(methods.dispatch, reason=reason)
