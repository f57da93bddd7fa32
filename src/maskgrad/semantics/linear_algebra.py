"""Formulas of linear algebra that are made of elementwise steps, or of one sum: cross products, powers, the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad.semantics.entries import Entries, fill, intersection, safe, values_of
from maskgrad.semantics.facts import of_rule, record
from maskgrad.semantics.numbers import Number
from maskgrad.semantics.reductions import sum
from maskgrad.semantics.signatures import bound

if TYPE_CHECKING:
    from collections.abc import Callable


def cross(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``a_j b_k - a_k b_j``: a difference is specified where both of its products are."""
    linalg = function is torch.linalg.cross
    arguments = bound("input other dim", args, kwargs)
    a, b = arguments["input"], arguments["other"]
    dim = arguments.get("dim", -1 if linalg else None)
    values = function(safe(a), safe(b), **({} if dim is None else {"dim": dim}))
    if dim is None:  # torch.cross takes the first dimension of size 3
        dim = list(values_of(a).shape).index(3)
    both = intersection((a, b))
    assert both is not None  # dispatch calls a rule only with masked arguments
    both = both.expand(values.shape)
    return Entries(values, both.roll(1, dim) & both.roll(-1, dim))


def trace(input: Entries) -> Entries:
    """The sum of the specified entries of the diagonal."""
    values, mask = input
    if values.ndim != 2 or values.dtype == torch.bool:
        torch.trace(values)  # torch says what is wrong
    return sum(Entries(values.diagonal(), mask.diagonal()))


def vander(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``vander``: the powers of an entry are specified where the entry is."""
    arguments = bound("input N increasing", args, kwargs)
    input = arguments.pop("input")
    values = function(fill(input, input.mask, 1), **arguments)
    return Entries(values, input.mask.unsqueeze(-1).expand(values.shape))


OPERATIONS = (
    *(
        record(
            name,
            "contractions",
            cross,
            "specified where the four entries that make the component are",
            "that of the difference of two products",
            functions=functions,
        )
        for name, functions in (("cross", None), ("linalg.cross", (torch.linalg.cross,)))
    ),
    of_rule(
        trace,
        "contractions",
        "a plain number",
        "the incoming gradient at each specified entry of the diagonal",
        number=Number(0, dim=None),
    ),
    *(
        record(
            name,
            "contractions",
            vander,
            "that of the vector, for each of the powers",
            "that of the powers",
            functions=(function,),
        )
        for name, function in (("vander", torch.vander), ("linalg.vander", torch.linalg.vander))
    ),
)
