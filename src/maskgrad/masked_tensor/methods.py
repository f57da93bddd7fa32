"""The methods, properties and operators of MaskedTensor, derived from the records of semantics."""

from __future__ import annotations

import operator
from collections.abc import Callable
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError, UnsupportedOperationError
from maskgrad.masked_tensor import autograd, completeness, printing, sequence_ends, sequences, storage
from maskgrad.masked_tensor.creation import from_numpy
from maskgrad.masked_tensor.dispatch import dispatch, unwrap
from maskgrad.masked_tensor.numpy_memory import tensor_of
from maskgrad.masked_tensor.tensor import TAKEN_APART, MaskedTensor, stored_of
from maskgrad.masked_tensor.writing import keep_masks, write_mask
from maskgrad.semantics.facts import Operation
from maskgrad.semantics.indexing import assigned
from maskgrad.semantics.refusals import REFUSALS
from maskgrad.semantics.registry import OPERATIONS

__all__ = ["install"]

#: Python's binary operators, with their reflected and in-place forms.
BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
#: Comparisons are their own reflections.
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
UNARY = ("neg", "pos", "abs", "invert")
#: Packages with operators of their own for tables and columns, and how ours convert them.
TABLES = {"pandas": "pandas", "polars": "arrow", "pyarrow": "arrow", "scipy": "scipy"}
#: Properties of torch.Tensor that are those of the values; read directly, as many are read for one operation.
OF_VALUES = """
    dtype device is_cuda is_cpu is_meta is_quantized is_leaf grad_fn itemsize nbytes output_nr is_mps is_xla is_nested
    retains_grad
"""
#: The kinds of operands that need no second look.
USUAL = frozenset({MaskedTensor, Tensor, torch.nn.Parameter, bool, int, float, complex})


# The closures below contain functions of torch only, none of ours: torch.compile can rebuild only the former when it
# meets a method of a MaskedTensor that was made inside the graph.


def _method(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def method(self: MaskedTensor, *args: Any, **kwargs: Any) -> Any:
        return _called(function, (self, *args), kwargs)

    method.__name__ = name
    method.__qualname__ = f"MaskedTensor.{name}"
    return method


def _operator(function: Callable[..., Any], name: str, reflected: bool = False) -> Callable[..., Any]:
    def method(self: MaskedTensor, other: Any) -> Any:
        if type(other) not in USUAL:
            if _is_foreign(other):
                if not reflected and name.replace("__", "__r", 1) in dir(other):  # which Python calls
                    return NotImplemented
                return _called(getattr(Tensor, name), (self, other), {})
            other = _converted(other)
            if other is NotImplemented:
                return other
        return dispatch(function, (other, self) if reflected else (self, other), {})

    method.__name__ = name
    method.__qualname__ = f"MaskedTensor.{name}"
    return method


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method of a MaskedTensor, or as PyTorch does, ``__torch_function__`` of a foreign Tensor-like argument."""
    for argument in (*args[1:], *kwargs.values()):
        if type(argument) not in USUAL and _is_foreign(argument):
            parts = [
                part for a in (*args, *kwargs.values()) for part in (a if type(a) in (list, tuple) else (a,))
            ]
            return torch.overrides.handle_torch_function(function, parts, *args, **kwargs)
    return dispatch(function, args, kwargs)


def _is_foreign(other: Any) -> bool:
    """Return whether ``other`` is a Tensor-like of another package, which gets the MaskedTensor, not its values."""
    kind = type(other)
    if kind is list or kind is tuple:
        return any(_is_foreign(part) for part in other)
    return hasattr(kind, "__torch_function__") and not issubclass(kind, (Tensor, MaskedTensor))


def _converted(other: Any) -> Any:
    """Convert a NumPy array, which shares its memory; for what is no operand NotImplemented, as Python asks."""
    package = type(other).__module__.partition(".")[0]
    if package == "numpy":
        if hasattr(other, "mask"):
            return from_numpy(other)
        return tensor_of(other) if getattr(other, "ndim", 0) or type(other).__name__ == "ndarray" else other
    if package in TABLES:
        name = TABLES[package]
        back = "pl.from_arrow(mg.interop.to_arrow(x))" if package == "polars" else f"mg.interop.to_{name}(x)"
        raise UnsupportedOperationError(
            f"an operator with a {package} {type(other).__name__} on the other side",
            "it is ambiguous which side defines the missing entries",
            f"Make both the same: mg.from_{name}(…) for MaskedTensors, {back} for {package}.",
        )
    return other if isinstance(other, (Tensor, Number)) or package == "torch" else NotImplemented


def _unary(function: Callable[..., Any], name: str = "read") -> Callable[..., Any]:
    def method(self: MaskedTensor) -> Any:
        return dispatch(function, (self,), {})

    method.__name__ = name
    return method


def _getitem(self: MaskedTensor, index: Any) -> Any:
    if type(index) not in USUAL and _is_foreign(index):
        return _called(Tensor.__getitem__, (self, index), {})
    if type(index) is int and not self.shape:
        raise IndexError(f"invalid index of a 0-dim tensor. {TAKEN_APART}")
    return dispatch(operator.getitem, (self, index), {})


def _setitem(self: MaskedTensor, index: Any, value: Any) -> None:
    if _is_foreign(index) or _is_foreign(value):
        _called(Tensor.__setitem__, (self, index, value), {})
        return
    if self._values.requires_grad and self._values.is_leaf and torch.is_grad_enabled():
        raise RuntimeError(
            "assigning to entries of a leaf MaskedTensor that requires grad; clone() it first, or use torch.no_grad()"
        )
    for operand in (self, value):
        if isinstance(operand, MaskedTensor) and stored_of(operand) is not None:
            raise UnsupportedLayoutError("assigning to entries", operand.layout, tuple(operand.shape))
    if isinstance(value, MaskedTensor):
        keep_masks((value,))
    index, wanted, values = assigned(*(unwrap(x, []) for x in (self, index, value)))
    write_mask(self, index, wanted)
    if values is not None:
        self._values[index] = values.to(self._values.dtype) if isinstance(values, Tensor) else values


def _torch_function(
    cls: type,
    func: Callable[..., Any],
    types: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    if len(types) > 1 and not all(issubclass(kind, (MaskedTensor, Tensor)) for kind in types):
        return NotImplemented  # torch calls that of the other Tensor-like next
    return dispatch(func, args, kwargs or {})


def _of_values(name: str) -> property:
    def read(self: MaskedTensor) -> Any:  # torch.compile cannot trace operator.attrgetter
        return getattr(self._values, name)

    return property(read)


def _documented(name: str, operation: Operation, where: str = "") -> Callable[..., Any]:
    method = _method(getattr(Tensor, name), name)
    method.__doc__ = (
        f"``torch.Tensor.{name}``, {where}on the specified entries.\n\n"
        f"Pattern: {operation.pattern}. Gradient: {operation.gradient}."
    )
    return method


def install() -> None:
    """Put methods, operators and properties on the class: first those written by hand, then the derived ones."""
    by_name = (*sequences.METHODS, *sequence_ends.METHODS, *completeness.METHODS, *autograd.METHODS)
    by_hand = storage.methods() | {m.__name__: m for m in by_name}
    for name, written in (by_hand | autograd.PROPERTIES).items():
        setattr(MaskedTensor, name, written)
    for name in OF_VALUES.split():
        setattr(MaskedTensor, name, _of_values(name))
    for operation in OPERATIONS:
        for name in operation.methods:
            if name in MaskedTensor.__dict__:
                continue  # written by hand: layout, item, …
            if operation.is_property:
                setattr(MaskedTensor, name, property(_unary(operation.functions[0])))
            else:
                setattr(MaskedTensor, name, _documented(name, operation))
        for function in operation.in_place:
            name = getattr(function, "__name__", "")
            is_method = name.endswith("_") and not name.startswith("__") and hasattr(Tensor, name)
            if is_method and name not in by_hand:
                setattr(MaskedTensor, name, _documented(name, operation, "in place, "))
    for refusal in REFUSALS:  # so that x.svd() raises the same error as torch.svd(x)
        for name in refusal.methods:
            setattr(MaskedTensor, name, _method(getattr(Tensor, name), name))
    for name in BINARY.split():
        function = getattr(operator, f"__{name}__")
        setattr(MaskedTensor, f"__{name}__", _operator(function, f"__{name}__"))
        setattr(MaskedTensor, f"__r{name}__", _operator(function, f"__r{name}__", reflected=True))
        setattr(MaskedTensor, f"__i{name}__", _operator(getattr(operator, f"__i{name}__"), f"__i{name}__"))
    for name in COMPARISONS:
        setattr(MaskedTensor, f"__{name}__", _operator(getattr(operator, f"__{name}__"), f"__{name}__"))
    for name in UNARY:
        setattr(MaskedTensor, f"__{name}__", _unary(getattr(operator, f"__{name}__"), f"__{name}__"))
    MaskedTensor.__repr__ = printing.text  # type: ignore[method-assign, assignment]
    MaskedTensor.__torch_function__ = classmethod(_torch_function)  # type: ignore[method-assign, assignment]
    MaskedTensor.__getitem__ = _getitem  # type: ignore[method-assign, assignment]
    MaskedTensor.__setitem__ = _setitem  # type: ignore[method-assign, assignment]
    for name in ("real", "imag"):
        setattr(MaskedTensor, name, property(_unary(getattr(torch, name))))
