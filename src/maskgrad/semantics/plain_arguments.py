"""Masked counts, positions, sizes and shifts: read if all of them are specified, else refused.

What lies under a mask must not decide a shape.
"""

from __future__ import annotations

from typing import Any

import torch

from maskgrad.errors import UnspecifiedValueError
from maskgrad.semantics.entries import Entries


def plain_argument(argument: Any) -> Any:
    """The argument, or its numbers if it is masked, in lists too; on an accelerator this waits for the device.

    Raises:
        UnspecifiedValueError: one of them is unspecified, or a graph is being made, in which nobody can know.
    """
    if type(argument) in (list, tuple):
        return type(argument)([plain_argument(part) for part in argument])
    if not isinstance(argument, Entries):
        return argument
    if torch.compiler.is_compiling():
        raise UnspecifiedValueError(
            "a MaskedTensor says how many, where or how large, and a graph cannot tell whether all of it is specified; "
            "pass a plain tensor, x.filled(value)"
        )
    if not bool(argument.mask.all()):
        raise UnspecifiedValueError(
            "a MaskedTensor says how many, where or how large, and some of its entries are unspecified; "
            "fill them, x.filled(value), or leave them out, x.compressed()"
        )
    return argument.values if argument.values.ndim else argument.values.item()


def plain_arguments(args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The same for all of a call but its operand."""
    return [plain_argument(a) for a in args], {name: plain_argument(a) for name, a in kwargs.items()}
