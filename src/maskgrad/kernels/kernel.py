"""What there is to know about a kernel besides its bodies: the record that a family fills in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["FLOATS", "REDUCIBLE", "Kernel"]

FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
REDUCIBLE = FLOATS | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool}


@dataclass(frozen=True)
class Kernel:
    """One operator ``torch.ops.maskgrad.<name>``.

    Attributes:
        name: of the operator, and of the functions that are its bodies.
        family: the module that holds a body, in ``reference``, ``cpu``, and perhaps ``cuda``.
        schema: arguments and results, in PyTorch's schema language.
        dtypes: those that the compiled bodies know.
        least: the number of values from which the compiled body for CPUs wins over the reference; taken for CUDA, too.
        leading: which argument decides dtype and size.
        backward: the derivative, written with kernels, so that derivatives of any order exist.
        save: what the derivative needs, kept in the forward pass (``setup_context``).
        fake: the body for tensors without data, where the reference's own would lie otherwise in memory.
        summary: what it computes, in one line.
    """

    name: str
    family: str
    schema: str
    dtypes: frozenset[torch.dtype]
    least: int
    summary: str
    leading: int = 0
    backward: Callable[..., Any] | None = None
    save: Callable[..., None] | None = None
    fake: Callable[..., Any] | None = None
