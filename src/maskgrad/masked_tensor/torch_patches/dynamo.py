"""Completes Dynamo for a Tensor-like that is not a Tensor.

Each function here completes one table or method of Dynamo; ``table.py`` says what would be wrong without it. They run
when, and only when, Dynamo itself is imported.
"""

from __future__ import annotations

import functools
import importlib
import operator
from pathlib import Path
from typing import Any

import torch

from maskgrad.errors import MaskgradError
from maskgrad.masked_tensor.dispatch import BY_FUNCTION
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.autograd_functions import reason_and_remedy
from maskgrad.masked_tensor.torch_patches.patch import exchange
from maskgrad.versions import is_before

__all__ = [
    "ask_for_more_functions",
    "do_not_trace",
    "find_in_tuples",
    "invert",
    "is_since",
    "keep_in_place",
    "knows_invert",
    "multiply_matrices",
    "numbers_on_the_left",
    "refuse_in_functions",
    "report_errors",
    "start_nowhere_within",
]


def _variables(kind: str) -> Any:
    """A module of Dynamo's variables; its types are of no help to whoever replaces parts of it."""
    return importlib.import_module(f"torch._dynamo.variables.{kind}")


def _exchange(path: str, function: Any) -> None:
    exchange(f"torch._dynamo.{path}", function, everywhere=False)


def multiply_matrices() -> None:
    """Reflect ``tensor @ masked``, and let ``masked @ masked`` ask the operands as other operators do."""
    builtin = _variables("builtin")
    for product in (operator.matmul, operator.imatmul):
        builtin.BUILTIN_TO_TENSOR_RFN_MAP[product] = torch.Tensor.__rmatmul__
    binary = builtin.BuiltinVariable._binops()
    if operator.matmul not in binary:
        binary[operator.matmul] = (["__matmul__", "__rmatmul__", "__imatmul__"], operator.imatmul)
        builtin.BuiltinVariable._binop_handlers.cache_clear()


def knows_invert() -> bool:
    """Whether Dynamo traces ``~object`` by itself."""
    return hasattr(_variables("builtin").BuiltinVariable, "call_invert")


def is_since(version: str) -> bool:
    """Whether Dynamo is that of this PyTorch or a later one; there is nothing else to tell them apart by."""
    return not is_before(torch.__version__, version)


def invert() -> None:
    """Let ``~object`` be its method ``__invert__``; None lets Dynamo go on as before with everything else."""

    def call_invert(self: Any, tx: Any, operand: Any) -> Any:
        is_object = isinstance(operand, _variables("user_defined").UserDefinedObjectVariable)
        return operand.call_method(tx, "__invert__", [], {}) if is_object else None

    _variables("builtin").BuiltinVariable.call_invert = call_invert


#: Which method of the operand on the right serves an operator with a number on the left.
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
    """Let ``number < masked`` and ``number & masked`` ask the operand, and ``number **= masked`` make a new object."""
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
    """Let ``masked += tensor`` and ``tensor += masked`` be what Python makes of them: the first one writes."""
    kind = _variables("builtin").BuiltinVariable
    usual = _variables("builtin").IN_PLACE_DESUGARING_MAP

    def insert_op(insert: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn in usual and len(args) == 2 and not kwargs:
            target, operand = args
            if _is_masked(target):
                return target.call_method(tx, f"__{self.fn.__name__}__", [operand], {})
            if _is_masked(operand) and isinstance(target.realize(), _variables("tensor").TensorVariable):
                # which cannot take what is masked: a new object it is
                ordinary = getattr(operator, f"__{self.fn.__name__[1:]}__")
                return type(self)(ordinary).call_function(tx, [target, operand], {})
        return insert(self, tx, args, kwargs)

    _exchange("variables.builtin.BuiltinVariable._handle_insert_op_in_graph", insert_op)
    kind.call_function_handler_cache.clear()  # it holds the method as it was


def _is_masked(variable: Any) -> bool:
    variable = variable.realize()
    is_object = isinstance(variable, _variables("user_defined").UserDefinedObjectVariable)
    return is_object and variable.python_type() is MaskedTensor


def refuse_in_functions() -> None:
    """Let Dynamo refuse a MaskedTensor in a custom autograd function, whose backward it would forget."""

    def call_apply(apply: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if any(_is_masked(argument) for argument in (*args, *kwargs.values())):
            what = "MaskedTensor in a custom autograd function"
            _refuse(what, f"{self.fn_cls.__name__}.apply", reason_and_remedy(self.fn_cls))
        return apply(self, tx, args, kwargs)

    _exchange("variables.misc.AutogradFunctionVariable.call_apply", call_apply)


def _refuse(kind: str, context: str, explanation: str) -> None:
    """Break the graph in the way of Dynamo: an error where there must be one graph, plain Python elsewhere."""
    from torch._dynamo import exc

    exc.unimplemented(gb_type=kind, context=context, explanation=explanation, hints=[])


def report_errors() -> None:
    """Let Dynamo pass on what our errors say, whose constructors it cannot trace."""

    def call_function(call: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        kind = self.value
        if isinstance(kind, type) and issubclass(kind, MaskgradError):
            _refuse(kind.__name__, kind.__name__, _words(kind, args, kwargs))
        return call(self, tx, args, kwargs)

    _exchange("variables.user_defined.UserDefinedClassVariable.call_function", call_function)


def _words(kind: type[Exception], args: Any, kwargs: Any) -> str:
    """The message of an error, as far as its arguments are known while a graph is traced."""
    try:
        known = {name: value.as_python_constant() for name, value in kwargs.items()}
        return str(kind(*(value.as_python_constant() for value in args), **known))
    except Exception:  # whatever Dynamo raises for what it does not know yet: the refusal itself must arrive
        return kind.__doc__ or kind.__name__


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
    """Let Dynamo ask Tensor-likes in every function that has a record; its set of them is made once and kept."""
    _variables("torch").get_overridable_functions().update(
        function for function in BY_FUNCTION if callable(function)
    )


#: Where functions of torch are passed on from one frame to the next.
_PASSING_ON = tuple(
    str(Path(__file__).parents[2] / folder).replace("\\", "/") + "/"
    for folder in ("masked_tensor", "semantics")
)


def start_nowhere_within() -> None:
    """Let Dynamo begin no graph in the frames between a method and its rule; graphs of callers go through as before.

    Where a caller's graph breaks, they are called from plain Python. Dynamo would compile each of them by itself, and
    use the graph made for ``Tensor.sub`` again for ``Tensor.add``: it has no guards on methods of Tensor
    (https://github.com/pytorch/pytorch/issues/197811).
    """
    rules: Any = importlib.import_module("torch._dynamo.trace_rules")

    def check_file(check: Any, filename: Any, is_inlined_call: bool = False) -> Any:
        if not is_inlined_call and str(filename).replace("\\", "/").startswith(_PASSING_ON):
            return rules.SkipResult(True, "a function of torch is passed on here, on which there is no guard")
        return check(filename, is_inlined_call)

    _exchange("trace_rules.check_file", check_file)


def do_not_trace(reason: str) -> None:
    """Break graphs at MaskedTensors from now on: what is not compiled is right, what is compiled half might not be."""
    methods: Any = importlib.import_module("maskgrad.masked_tensor.methods")
    methods.dispatch = torch.compiler.disable(methods.dispatch, reason=reason)
