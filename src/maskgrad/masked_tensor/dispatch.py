"""Dispatch of torch functions: find the rule, unwrap the arguments, wrap the result."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator

from maskgrad.errors import UndefinedOnMaskedError, UnsupportedLayoutError, UnsupportedOperationError
from maskgrad.masked_tensor import tensor as masked_tensor
from maskgrad.masked_tensor.identity import MISSING, of_complete
from maskgrad.masked_tensor.instead import instead_of, name_of
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.writing import keep_masks, makes_views, pattern_of_result, recorded, write_result
from maskgrad.patterns import BooleanPattern, JaggedPattern
from maskgrad.semantics import callbacks
from maskgrad.semantics.autocasting import as_autocast
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import Operation
from maskgrad.semantics.indexing import NO_VALUES, VALUES, WRITING, refuse_to_write
from maskgrad.semantics.jagged import registry as jagged
from maskgrad.semantics.refusals import REFUSALS
from maskgrad.semantics.registry import OPERATIONS
from maskgrad.semantics.stored import registry as listed
from maskgrad.semantics.stored.entries import StoredEntries

__all__ = ["Binding", "binding_of", "call", "dispatch"]


class Binding(NamedTuple):
    """One function of an operation."""

    operation: Operation
    in_place: bool = False  # it writes to its first argument
    #: a function with the same signature that does not, or that torch.compile can trace
    out_of_place: Callable[..., Any] | None = None
    usual: Callable[..., Any] | None = None  # the operator with its operands in the usual order
    flag: int | None = None  # position of the argument ``inplace``, if any (``F.relu(x, True)``)


#: Methods of Tensor that torch.compile cannot trace, and equivalent functions that it can.
TRACEABLE: dict[Any, Callable[..., Any]] = {Tensor.unflatten: torch.unflatten}


def _bindings() -> tuple[dict[Any, Binding], tuple[tuple[Any, Binding], ...]]:
    by_function: dict[Any, Binding] = {}
    written_in_python: list[tuple[Any, Binding]] = []
    for operation in OPERATIONS:
        spellings = [
            (f, Binding(operation, out_of_place=TRACEABLE.get(f), flag=_place_of_inplace(f)))
            for f in operation.functions
        ]
        spellings += [(f, Binding(operation, True, _out_of_place(operation, f))) for f in operation.in_place]
        spellings += [(f, Binding(operation, usual=usual)) for f, usual in operation.reflected]
        for function, binding in spellings:
            if isinstance(function, FunctionType) and function.__module__ == "torch._tensor":
                written_in_python.append((function, binding))
            else:
                by_function[function] = binding
    return by_function, tuple(written_in_python)


def _place_of_inplace(function: Any) -> int | None:
    """Return the position of ``inplace`` among the arguments: torch.compile passes it as in the call."""
    if getattr(function, "__module__", "") != "torch.nn.functional" or not isinstance(function, FunctionType):
        return None
    names = list(inspect.signature(function).parameters)
    return names.index("inplace") if "inplace" in names else None


def _out_of_place(operation: Operation, function: Any) -> Callable[..., Any]:
    """Return ``Tensor.exp`` for ``Tensor.exp_``: methods and functions may take operands in another order."""
    name = getattr(function, "__name__", "")
    if getattr(Tensor, name, None) is function and not name.startswith("__"):
        method = getattr(Tensor, name.removesuffix("_"), None)
        if method is not None:
            return method  # type: ignore[no-any-return]
    return operation.functions[0] if operation.functions else function


#: WRITTEN_IN_PYTHON are Tensor's methods written in Python (__pow__, __rsub__, …). Under torch.compile they cannot be
#: looked up in a dict, and since PyTorch 2.15 they have no names there.
BY_FUNCTION, WRITTEN_IN_PYTHON = _bindings()
#: Functions that call ``__torch_function__`` and write with methods of the tensor.
MADE_OF_METHODS = frozenset(
    getattr(torch.nn.init, name) for name in ("uniform_", "normal_", "constant_", "kaiming_uniform_")
)
ON_MASKED: list[Any] = []  # functions of the layers above, and their rules, which take MaskedTensors
REFUSED = {function: refusal for refusal in REFUSALS for function in refusal.functions}


def binding_of(function: Any) -> Binding | None:
    """Return the binding of a function of torch, or None."""
    found = BY_FUNCTION.get(function)
    if found is None and getattr(function, "__module__", "") == "torch._tensor":
        for known, binding in WRITTEN_IN_PYTHON:
            if function is known:
                return binding
    return found


def dispatch(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handle ``__torch_function__``: find the rule of the called function, or raise an error."""
    binding = BY_FUNCTION.get(function) or binding_of(function)
    if binding is None:
        for known, rule in ON_MASKED:
            if function is known:
                return rule(*args, **kwargs)
        if function in MADE_OF_METHODS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        if isinstance(function, HigherOrderOperator):
            return _with_operands_inside(function, args, kwargs)
        refusal = REFUSED.get(function)
        if refusal is not None:
            found = of_complete(function, args, kwargs) if refusal.of_values else MISSING
            if found is MISSING:
                raise UndefinedOnMaskedError(name_of(function), refusal.reason, refusal.remedy)
            return found
        name = name_of(function)
        raise UnsupportedOperationError(name, instead=instead_of(function, name))
    try:
        return call(binding, function, args, kwargs)
    except UndefinedOnMaskedError:  # for some of its arguments, such as p="nuc"
        found = of_complete(function, args, kwargs)
        if found is MISSING:
            raise
        return found


def _with_operands_inside(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``torch.utils.checkpoint`` in a graph on a function that contains its arguments, and dispatches inside."""
    run, *given = args
    masked = {name: value for name, value in kwargs.items() if type(value) is masked_tensor.MaskedTensor}
    others = {name: value for name, value in kwargs.items() if name not in masked}
    return function(lambda **rest: run(*given, **masked, **rest), **others)


def call(
    binding: Binding, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Apply a rule to unwrapped arguments and wrap what it returns."""
    operation, in_place, out_of_place, usual, flag = binding
    given = args
    if usual is not None:
        function, args = usual, (args[1], args[0])
    out = None
    if flag is not None and len(args) > flag:
        in_place = bool(args[flag]) or in_place
        args = (*args[:flag], False, *args[flag + 1 :])
    for value in (
        (*args, *[kwargs[name] for name in VALUES & kwargs.keys()]) if operation.name in WRITING else ()
    ):
        if type(value) in NO_VALUES:
            refuse_to_write(value)
    if kwargs:
        in_place = kwargs.get("inplace", False) or in_place
        out = kwargs.get("out")
        kwargs = {k: v for k, v in kwargs.items() if k not in ("inplace", "out")}
    if out_of_place is not None:
        function = out_of_place
    if in_place:
        args = recorded(args, kwargs)
    sources: list[MaskedTensor] = []
    plain, body = tuple([unwrap(argument, sources) for argument in args]), operation.body
    if kwargs:
        kwargs = {name: unwrap(value, sources) for name, value in kwargs.items()}
    stored = [x for x in sources if type(x._pattern) is not BooleanPattern]
    if stored:
        body = _rule_for_stored(operation, function, stored)
    if torch._C._is_any_autocast_enabled():
        body = as_autocast(operation.name, body, (*plain, *kwargs.values()), len(stored) > 0)
    result = body(function, plain, kwargs)
    if operation.number is not None:
        result = operation.number.of(result, plain, kwargs)
    if type(out) is masked_tensor.MaskedTensor:
        sources.append(out)
    if torch.is_grad_enabled() and not makes_views(operation, args):
        keep_masks(sources)
    if in_place or out is not None:
        reshapes = operation.family == "views"  # squeeze_, t_, …
        return write_result(given[0] if in_place else out, result, function, reshapes)

    def make(values: Tensor, mask: Tensor) -> MaskedTensor:
        return masked_tensor.MaskedTensor(values, pattern_of_result(operation, args, sources, values, mask))

    return make(*result) if type(result) is Entries else wrap(result, make)


def _rule_for_stored(operation: Operation, function: Any, operands: list[MaskedTensor]) -> Callable[..., Any]:
    are_jagged = [type(operand._pattern) is JaggedPattern for operand in operands]
    rule = jagged.rule_for(operation) if all(are_jagged) else listed.rule_for(operation)
    # operation.body accepts every layout
    mixed = any(are_jagged) and not all(are_jagged) and rule is not operation.body
    if rule is None or mixed:
        raise UnsupportedLayoutError(name_of(function), operands[0].layout)
    return rule


def unwrap(argument: Any, found: list[MaskedTensor]) -> Any:
    """Replace a MaskedTensor, or those in a sequence, by entries; it is appended to ``found``."""
    kind = type(argument)
    if kind is masked_tensor.MaskedTensor:
        found.append(argument)
        pattern = argument._pattern
        if type(pattern) is BooleanPattern:
            return Entries(argument._values, pattern.current)
        return StoredEntries(argument._values, pattern)
    if kind is list or kind is tuple:
        return kind([unwrap(part, found) for part in argument])
    return argument


def wrap(result: Any, make: Callable[[Tensor, Tensor], MaskedTensor] | None = None) -> Any:
    """Replace entries, or those in a sequence, by MaskedTensors; ``make`` makes one of values and mask."""
    if isinstance(result, Entries):
        return (masked_tensor.of_entries if make is None else make)(*result)  # 2.12 traces no `make or`
    if isinstance(result, StoredEntries):
        return masked_tensor.MaskedTensor(result.values, result.pattern)
    if isinstance(result, (tuple, list)) and not isinstance(result, torch.Size):
        return type(result)([wrap(part, make) for part in result])
    return result


callbacks.provide(wrap, lambda argument: unwrap(argument, []))
