"""What is known about each operation: one record, from which everything else is derived.

Dispatch, the methods of ``MaskedTensor``, the documentation's coverage table and the conformance
tests read these records; none of them keeps a list of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskgrad.semantics.numbers import Number

__all__ = ["Operation", "functions_named"]

#: Where torch keeps the public functions of one name and one meaning.
NAMESPACES = (torch, Tensor, torch.special, F)


@dataclass(frozen=True, eq=False)
class Operation:
    """The facts about one operation.

    Attributes:
        name: torch's name for it (``"exp"``), unique.
        family: the stem under which rule, kernel, test and page are found (``"elementwise"``).
        functions: every callable of torch with this meaning (``torch.exp``, ``torch.Tensor.exp``, …).
        body: the rule. Called with the function the user called, its positional and its keyword arguments,
            masked ones as :class:`~maskgrad.semantics.entries.Entries`; returns entries.
        pattern: which entries of the result are specified, in words.
        gradient: what reaches the operands, in words.
        filler: the constant that makes an operand safe, None if the body never reads what is under the mask.
        identity: the value with which an unspecified entry takes no part in a reduction.
        layouts: the storage layouts on which the body works.
        reflected: callables that take their operands in exchanged order (``Tensor.__rsub__``), each with the operator
            that takes them in the usual one.
        methods: names under which MaskedTensor has the operation.
        in_place: callables that write their result into the first argument (``torch.exp_``, …).
        is_property: MaskedTensor spells it without parentheses (``x.T``).
        number: when the result is one plain number; None for what is never one.
    """

    name: str
    family: str
    functions: tuple[Callable[..., Any], ...]
    body: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
    pattern: str
    gradient: str = "zero at unspecified entries"
    filler: float | None = None
    identity: float | str | None = None
    layouts: tuple[torch.layout, ...] = (torch.strided,)
    in_place: tuple[Callable[..., Any], ...] = ()
    reflected: tuple[tuple[Callable[..., Any], Callable[..., Any]], ...] = ()
    methods: tuple[str, ...] = ()
    is_property: bool = False
    number: Number | None = None


def functions_named(
    names: str, extra: tuple[Any, ...] = (), namespaces: tuple[Any, ...] = NAMESPACES
) -> tuple[tuple[Callable[..., Any], ...], tuple[Callable[..., Any], ...], tuple[str, ...]]:
    """Find every spelling of an operation: ``"acos arccos"`` gives functions, in-place functions, method names.

    Operators (``operator.add``) count as spellings: exporting traces them as such.
    """
    spellings = names.split()
    found: dict[Any, None] = {}
    in_place: dict[Any, None] = {}
    for name in spellings:
        for namespace in namespaces:
            for where, key in ((found, name), (in_place, name + "_")):
                candidate = getattr(namespace, key, None)
                if callable(candidate):
                    where[candidate] = None
    for candidate in extra:
        found[candidate] = None
    methods = tuple(name for name in spellings if callable(getattr(Tensor, name, None)))
    return tuple(found), tuple(in_place), methods
