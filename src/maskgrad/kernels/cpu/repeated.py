"""Repeating the call of a loop with other memory.

What an implementation does around its loop depends on shapes, strides and dtypes alone, and takes longer than the loop
for a few thousand values: 10 of 12 us for a sum of 12,800. So the first call with given ones is recorded. If it only
made memory for its results and ran one loop, later calls do this and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from maskgrad.kernels.cpu.memory import LARGE
from maskgrad.kernels.cpu.threads import SERIAL, noted_runs

#: Memory for a tensor on the CPU; graphs of Inductor call it, too. torch.empty takes 1.0 us, this 0.4.
new = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]
_MAKERS = {torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty}
#: They read no values; if a view begins at another address, the call is not repeated. Properties are ``__get__``.
_HARMLESS = {
    "__get__", "_is_view", "as_strided", "data_ptr", "detach", "dim", "element_size", "expand", "is_complex",
    "is_contiguous", "is_floating_point", "numel", "reshape", "size", "squeeze", "stride", "unsqueeze", "view",
}  # fmt: skip
#: They read values unless they return their operand.
_CONVERSIONS = {"contiguous", "to"}


class Made(NamedTuple):
    """Memory for a result: its place among the arguments of the loop, the type of its numbers, and its sizes."""

    place: int
    kind: Any
    size: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class RepeatedCall(NamedTuple):
    """A call of a loop.

    Attributes:
        loop: the loop.
        arguments: its arguments; those for memory are replaced.
        read: place, type of numbers and index of each tensor that is read.
        made: memory for results.
        results: their indices in ``made``.
        is_tuple: whether the implementation returns a tuple.
    """

    loop: Callable[..., None]
    arguments: list[Any]
    read: list[tuple[int, Any, int]]
    made: list[Made]
    results: tuple[int, ...]
    is_tuple: bool

    def again(self, tensors: Sequence[Any]) -> Any:
        """Run the loop on other tensors of the same shapes, strides and dtypes."""
        arguments = self.arguments.copy()
        for place, kind, index in self.read:
            arguments[place] = (tensors[index].data_ptr(), kind)
        made = []
        for place, kind, size, strides, dtype in self.made:
            out = new(size, strides, dtype)
            arguments[place] = (out.data_ptr(), kind)
            made.append(out)
        self.loop(*arguments)
        return tuple([made[i] for i in self.results]) if self.is_tuple else made[self.results[0]]


class _Watch(TorchFunctionMode):
    """Note new memory, and whether any function of PyTorch reads or writes values."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Tensor] = []
        self.computes = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _MAKERS:
            if result.is_cpu:  # else strides only
                self.made.append(result)
            return result
        name = getattr(func, "__name__", "")
        copies_nothing = name in _CONVERSIONS and result is args[0]
        self.computes = self.computes or not (name in _HARMLESS or copies_nothing)
        return result


def recorded(
    body: Callable[..., Any], args: tuple[Any, ...], tensors: Sequence[Tensor | None]
) -> tuple[Any, RepeatedCall | None]:
    """Call ``body(*args)``; also return how to repeat it, None if it does more than run one loop."""
    with _Watch() as watch, noted_runs() as runs:
        result = body(*args)
    return result, None if watch.computes or len(runs) != 1 else _repeated(
        *runs[0], tensors, watch.made, result
    )


def _is_table(x: Any) -> bool:
    """Return whether an array has memory of its own, not that of a tensor."""
    return x.base is None or (isinstance(x.base, np.ndarray) and _is_table(x.base))


def _repeated(
    loop: Callable[..., None], arguments: tuple[Any, ...], elements: int, tensors: Sequence[Tensor | None],
    made: Sequence[Tensor], result: Any,
) -> RepeatedCall | None:  # fmt: skip
    present = [i for i, x in enumerate(tensors) if x is not None]
    given = {tensors[i].data_ptr(): i for i in present}  # type: ignore[union-attr]
    if elements >= SERIAL or len(given) < len(present):  # threads, or two names for one memory
        return None
    places = {x.data_ptr(): x for x in made}
    read, memory = [], []
    at: dict[int, int] = {}
    for place, argument in enumerate(arguments):
        if isinstance(argument, np.ndarray) and not _is_table(argument):
            return None
        if not (type(argument) is tuple and len(argument) == 2 and type(argument[0]) is int):
            continue
        address, kind = argument
        if not isinstance(kind, np.generic):
            continue
        if address in given:
            read.append((place, kind, given[address]))
        elif address in places:
            out = places[address]
            if not out.is_contiguous() or out.nbytes >= LARGE:
                return None
            memory.append(Made(place, kind, tuple(out.shape), out.stride(), out.dtype))
            at[address] = len(memory) - 1
        else:
            return None
    found = []
    for x in result if isinstance(result, tuple) else (result,):
        index = at.get(x.data_ptr(), -1)
        if index < 0 or (tuple(x.shape), x.stride(), x.dtype) != memory[index][2:] or not x.is_contiguous():
            return None
        found.append(index)
    if len(at) < len(memory):  # one memory for two arguments
        return None
    return RepeatedCall(loop, list(arguments), read, memory, tuple(found), isinstance(result, tuple))
