"""Runs in which shapes or rows change: dropout lets everything through, and other draws are noted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.frames import Place, here
from maskgrad.doctor.operations import EMPTY, Facts
from maskgrad.doctor.trees import tensors_in
from maskgrad.doctor.twins import Guarded

__all__ = ["Entry", "Log", "Steady"]

_DROPOUT_ARGUMENTS = {"dropout_p", "dropout"}


class Steady(Guarded):
    """Dropout without its random numbers.

    A dropout multiplies by noise that is 0 or 1 / (1 - p); here it multiplies by 1. Backward passes of fused dropout
    may still scale by a constant, in every run the same.
    """

    def __init__(self) -> None:
        super().__init__()
        #: where the program itself draws numbers, and of which shape
        self.draws: list[tuple[Place | None, tuple[int, ...]]] = []

    def run(self, func: Callable[..., Any], facts: Facts, args: Any, kwargs: Any) -> Any:
        """The operation; see the class."""
        if facts.random or facts.name in ("_cudnn_rnn",):
            if facts.name == "bernoulli_" and _in_dropout():
                probability = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
                return args[0].fill_(probability)
            if facts.name == "native_dropout":
                return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
            args, kwargs, had_none = _without_dropout(func, args, kwargs)
            result = func(*args, **kwargs)
            if had_none:
                self.draws += [(here(), tuple(tensor.shape)) for tensor in tensors_in(result)]
            return result
        return func(*args, **kwargs)


def _in_dropout() -> bool:
    """Whether the call comes out of one of PyTorch's own dropout functions."""
    import sys

    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith("functional.py") and "torch" in file:
            return "dropout" in frame.f_code.co_name or "attention" in frame.f_code.co_name
        if "maskgrad" in file and "doctor" not in file and "dropout" in (frame.f_code.co_name + file):
            return True
        frame = frame.f_back  # type: ignore[assignment]
        if frame is not None and frame.f_code.co_name == "call_step":
            return False
    return False


def _without_dropout(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, bool]:
    """Arguments with the probability of a fused dropout set to zero; whether there was none."""
    arguments = list(args)
    for place, argument in enumerate(func._schema.arguments):
        if argument.name in _DROPOUT_ARGUMENTS:
            if place < len(arguments):
                arguments[place] = 0.0
            elif argument.name in kwargs:
                kwargs = {**kwargs, argument.name: 0.0}
            return tuple(arguments), kwargs, False
    return args, kwargs, True


@dataclass
class Entry:
    """One operation of a forward pass, with what it gave."""

    operation: str
    place: Place | None
    outputs: list[Tensor]


class Log(Steady):
    """Keeps what each operation of the forward pass gave."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []

    def run(self, func: Callable[..., Any], facts: Facts, args: Any, kwargs: Any) -> Any:
        """The operation; see the class."""
        result = super().run(func, facts, args, kwargs)
        if facts.view or facts.name in EMPTY or torch._C._current_autograd_node() is not None:
            return result
        outputs = [
            tensor.detach().clone()
            for place, tensor in enumerate(tensors_in(result))
            if tensor.is_floating_point() and tensor.layout is torch.strided and place not in facts.workspaces
        ]
        if outputs:
            self.entries.append(Entry(facts.name, here(), outputs))
        return result
