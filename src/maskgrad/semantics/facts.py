"""What is known about each operation: one record, from which everything else is derived.

Dispatch, the methods of ``MaskedTensor``, the documentation's coverage table and the conformance
tests read these records; none of them keeps a list of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.semantics.numbers import Number
from maskgrad.semantics.signatures import named

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
        reflected: callables that take their operands in exchanged order (``Tensor.__rsub__``), each with the operator
            that takes them in the usual one.
        methods: names under which MaskedTensor has the operation.
        in_place: callables that write their result into the first argument (``torch.exp_``, …).
        is_property: MaskedTensor spells it without parentheses (``x.T``).
        number: when the result is one plain number; None for what is never one.
        by_position: whether a position of the result looks at the same position of the operands only, and all positions
            may be reduced to a number: on stored entries it runs on these.
        padded: what comes of jagged entries that no rule for rows knows. ``"mask"``: it is computed on the padded form,
            and what is specified is no prefix of each sequence any more, or no sequence is left; ``"rows"``: computed
            on the padded form, it keeps the rows; ``""``: refused.
    """

    name: str
    family: str
    functions: tuple[Callable[..., Any], ...]
    body: Body
    pattern: str
    gradient: str
    in_place: tuple[Callable[..., Any], ...] = ()
    reflected: tuple[tuple[Callable[..., Any], Callable[..., Any]], ...] = ()
    methods: tuple[str, ...] = ()
    is_property: bool = False
    number: Number | None = None
    by_position: bool = False
    padded: str = ""


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
    extra: tuple[Callable[..., Any], ...] = (),
    namespaces: tuple[Any, ...] = NAMESPACES,
    **facts: Any,
) -> Operation:
    """A record, with all spellings that torch has: its functions, methods, and those that work in place.

    Args:
        names: torch's names; the first is that of the record, and may begin with ``nn.functional.``.
        family: see :class:`Operation`, as for pattern and gradient.
        rule: has torch's signature, see :func:`~maskgrad.semantics.signatures.named`; or is a body.
        pattern: which entries of the result are specified.
        gradient: what reaches the operands.
        extra: spellings that have other names.
        namespaces: where to look for functions.
        facts: what else there is to say; also functions, in_place and methods, where they are not those of the names.
    """
    functions, in_place = functions_named(names.replace("nn.functional.", ""), extra, namespaces)
    methods = tuple([n for n in names.split() if not n.endswith("_") and callable(getattr(Tensor, n, None))])
    spellings: dict[str, Any] = {"functions": functions, "in_place": in_place, "methods": methods}
    own = {"name": names.split()[0], "family": family, "pattern": pattern, "gradient": gradient}
    return Operation(body=named(rule), **{**own, **spellings, **facts})


def of_rule(rule: Callable[..., Any], family: str, *facts: str, also: str = "", **more: Any) -> Operation:
    """The record of a rule that has the name of torch's function; ``also``: other names for it."""
    return record(f"{rule.__name__} {also}", family, rule, *facts, **more)


def as_property(name: str) -> dict[str, Any]:
    """What a record says of a property of ``torch.Tensor``."""
    return {"functions": (getattr(Tensor, name).__get__,), "methods": (name,), "is_property": True}
