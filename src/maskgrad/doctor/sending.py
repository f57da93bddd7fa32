"""Twins and other ranks: an exchange happens once, and what differed before it differs by as much after it.

A second exchange would find nobody, and a result is not there yet when the operation returns. So the difference between
tensor and twin is kept, and added to the result when something first reads it: by then the program has waited for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from maskgrad.doctor.operations import Facts

__all__ = ["Differences", "passes_on", "waited_for"]


class Differences:
    """By how much twins are apart from tensors that are on their way."""

    def __init__(self) -> None:
        self._on_the_way: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}

    def keep(self, key: int, target: Tensor, tensor: Tensor, twin: Tensor) -> None:
        """``target``, of this memory, will hold what became of ``tensor``."""
        unequal = tensor.ne(twin)
        apart = twin - tensor if tensor.is_floating_point() or tensor.is_complex() else twin.clone()
        self._on_the_way.setdefault(key, []).append((target.detach(), unequal, apart))

    def __contains__(self, key: int) -> bool:
        return key in self._on_the_way

    def arrived(self, key: int) -> list[tuple[Tensor, Tensor]]:
        """The tensors of this memory that are there now, and their twins."""
        found = []
        for target, unequal, apart in self._on_the_way.pop(key, []):
            other = target + apart if target.is_floating_point() or target.is_complex() else apart
            found.append((target, torch.where(unequal, other, target)))
        return found


def passes_on(facts: Facts, args: Any) -> bool:
    """Whether what a rank gives to an exchange is part of what it gets where it gave it."""
    if facts.name.startswith("broadcast"):
        groups = [a for a in args if isinstance(a, torch.ScriptObject)]
        if groups:  # broadcast_(tensors, group, root, ...)
            return bool(torch.distributed.ProcessGroup.unbox(groups[0]).rank() == args[2])
    return "reduce" in facts.name.replace("_", "") and "scatter" not in facts.name


def waited_for(types: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments in which results of functional collectives are plain tensors: somebody is about to read them."""
    for kind in types:
        if kind.__name__ == "AsyncCollectiveTensor":
            wait: Callable[[Any], Tensor] = lambda tensor: tensor.trigger_wait()  # noqa: E731
            args, kwargs = tree_map_only(kind, wait, (args, kwargs))
    return args, kwargs
