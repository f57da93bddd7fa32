"""Facts about each operation, in one record from which everything else is derived.

Dispatch, the methods of ``MaskedTensor``, the coverage table of the documentation and the conformance
tests use these records, and have no lists of their own.
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

#: Namespaces of torch with public functions of the same name and meaning.
NAMESPACES = (torch, Tensor, torch.special, F)


@dataclass(frozen=True, eq=False)
class Operation:
    """Facts about one operation.

    Attributes:
        name: torch's name for it (``"exp"``), unique.
        family: the stem under which rule, kernel, test and page are found (``"elementwise"``).
        functions: every callable of torch with this meaning (``torch.exp``, ``torch.Tensor.exp``, …).
        body: the rule. Called with the function the user called, its positional and its keyword arguments,
            masked ones as :class:`~maskgrad.semantics.entries.Entries`; returns entries.
        pattern: which entries of the result are specified, in words, for the documentation.
        gradient: the gradient of the operands, in words.
        reflected: callables that take their operands in exchanged order (``Tensor.__rsub__``), each with the operator
            that takes them in the usual one.
        methods: names under which MaskedTensor has the operation.
        in_place: callables that write their result into the first argument (``torch.exp_``, …).
        is_property: a property of MaskedTensor (``x.T``).
        number: when the result is a plain scalar; None if never.
        by_position: whether each position of the result depends only on the same position of the operands, and all
            positions may be reduced to a scalar: on stored entries it runs on these.
        padded: for jagged entries without a rule for rows. ``"mask"``: computed on the padded form, with a Boolean
            mask, as the result is no prefix of each sequence any more, or no sequence is left; ``"rows"``: computed
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
    """Every spelling of ``"acos arccos"`` as functions, operators included, and in-place forms."""
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
    """A record, with all names in torch: functions (and ``extra`` ones), methods, and in-place forms.

    The first of ``names`` is that of the record, and may begin with ``nn.functional.``; a ``rule`` has torch's
    signature or is a body; ``facts`` are other fields of :class:`Operation`, or replace what follows from the names.
    """
    functions, in_place = functions_named(names.replace("nn.functional.", ""), extra, namespaces)
    methods = tuple([n for n in names.split() if not n.endswith("_") and callable(getattr(Tensor, n, None))])
    spellings: dict[str, Any] = {"functions": functions, "in_place": in_place, "methods": methods}
    own = {"name": names.split()[0], "family": family, "pattern": pattern, "gradient": gradient}
    return Operation(body=named(rule), **{**own, **spellings, **facts})


def of_rule(rule: Callable[..., Any], family: str, *facts: str, also: str = "", **more: Any) -> Operation:
    """Make the record of a rule named like torch's function; ``also``: other names for it."""
    return record(f"{rule.__name__} {also}", family, rule, *facts, **more)


def as_property(name: str) -> dict[str, Any]:
    """Fields of a record for a property of ``torch.Tensor``."""
    return {"functions": (getattr(Tensor, name).__get__,), "methods": (name,), "is_property": True}
