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

from maskgrad.semantics.signatures import named

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskgrad.semantics.numbers import Number

    Body = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

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
        filler: of an elementwise operation, the constant that makes an operand safe; None if it needs none.
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
    body: Body
    pattern: str
    gradient: str
    filler: float | None = None
    in_place: tuple[Callable[..., Any], ...] = ()
    reflected: tuple[tuple[Callable[..., Any], Callable[..., Any]], ...] = ()
    methods: tuple[str, ...] = ()
    is_property: bool = False
    number: Number | None = None


def functions_named(
    names: str, extra: tuple[Any, ...] = (), namespaces: tuple[Any, ...] = NAMESPACES
) -> tuple[tuple[Callable[..., Any], ...], tuple[Callable[..., Any], ...]]:
    """Every spelling of an operation: ``"acos arccos"`` gives its functions, and those that work in place.

    Operators (``operator.add``) count as spellings: exporting traces them as such.
    """
    found: dict[Any, None] = {}
    in_place: dict[Any, None] = {}
    for name in names.split():
        for namespace in namespaces:
            for where, key in ((found, name), (in_place, name + "_")):
                candidate = getattr(namespace, key, None)
                if callable(candidate):
                    where[candidate] = None
    return tuple(found | dict.fromkeys(extra)), tuple(in_place)


def record(
    names: str,
    family: str,
    rule: Callable[..., Any],
    pattern: str,
    gradient: str = "none",
    *,
    functions: tuple[Callable[..., Any], ...] | None = None,
    extra: tuple[Callable[..., Any], ...] = (),
    namespaces: tuple[Any, ...] = NAMESPACES,
    in_place: tuple[Callable[..., Any], ...] | None = None,
    methods: tuple[str, ...] | None = None,
    **facts: Any,
) -> Operation:
    """A record, with all spellings that torch has: its functions, methods, and those that work in place.

    Args:
        names: torch's names; the first is that of the record, and may begin with ``nn.functional.``.
        family: see :class:`Operation`, as for the others.
        rule: has torch's signature, see :func:`~maskgrad.semantics.signatures.named`; or is a body.
        pattern: which entries of the result are specified.
        gradient: what reaches the operands.
        functions: the functions, where those of these names are not what is meant.
        extra: spellings that have other names.
        namespaces: where to look for functions.
        in_place: those that work in place, likewise.
        methods: names of methods, likewise.
        facts: what else there is to say.
    """
    found, writing = functions_named(names.replace("nn.functional.", ""), extra, namespaces)
    spelled = [n for n in names.split() if not n.endswith("_") and callable(getattr(Tensor, n, None))]
    return Operation(
        name=names.split()[0],
        family=family,
        functions=found if functions is None else functions,
        body=named(rule),
        pattern=pattern,
        gradient=gradient,
        in_place=writing if in_place is None else in_place,
        methods=tuple(spelled) if methods is None else methods,
        **facts,
    )


def of_rule(rule: Callable[..., Any], family: str, *facts: str, also: str = "", **more: Any) -> Operation:
    """The record of a rule that has the name of torch's function; ``also``: other names for it."""
    return record(f"{rule.__name__} {also}", family, rule, *facts, **more)


def as_property(name: str) -> dict[str, Any]:
    """What a record says of a property of ``torch.Tensor``."""
    return {"functions": (getattr(Tensor, name).__get__,), "methods": (name,), "is_property": True}
