"""Decompositions of operations that PyTorch's exporter does not support, or exports wrongly.

Each is ordinary PyTorch, for any shape, with the same result; ``NotImplemented`` keeps the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from maskgrad.export.decompositions import elementwise, layers, sorting, views

__all__ = ["decomposed"]


def table() -> dict[Any, Callable[..., Any]]:
    """Return the implementation of each operation, by overload; overloads missing in this PyTorch are omitted."""
    found: dict[Any, Callable[..., Any]] = {}
    for module in (elementwise, layers, sorting, views):
        for names, body in module.BODIES.items():
            for name in names.split():
                packet, _, overload = name.partition(".")
                operation = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
                if operation is not None:
                    found[operation] = body
    return found


def decomposed(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Replace the operations in a program, also inside others."""
    found: torch.export.ExportedProgram = program.run_decompositions(table())
    return found
