"""Equations in Einstein's notation, written out: one letter for each dimension, no ellipsis, the result spelled out."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from maskgrad.semantics.entries import Entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Equation", "parse", "written_out"]

#: torch's order: implicit results list capitals first, and number k of a sublist is letter k.
LETTERS = string.ascii_uppercase + string.ascii_lowercase


class Equation(NamedTuple):
    """``terms`` name the dimensions of each factor, ``result`` those of the sum of products."""

    terms: tuple[str, ...]
    result: str


def written_out(equation: str, ranks: Sequence[int]) -> Equation:
    """Give every dimension under an ellipsis a letter of its own, and name the result if the equation does not.

    Args:
        equation: valid, as ``torch.einsum`` has accepted it.
        ranks: the number of dimensions of each factor.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    hidden = [rank - len(term) + 3 if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    unused = [letter for letter in LETTERS if letter not in equation]
    # dimensions under an ellipsis are aligned at the right, like those of operands that are broadcast
    batch = "".join(unused[: max(hidden)])
    full = tuple(
        term.replace("...", batch[len(batch) - size :]) for term, size in zip(terms, hidden, strict=True)
    )
    if arrow:
        return Equation(full, right.replace("...", batch))
    once = [letter for letter in LETTERS if left.count(letter) == 1]
    return Equation(full, batch + "".join(once))


def parse(args: Sequence[Any]) -> tuple[str, list[Any]]:
    """Equation and operands of a call ``einsum(equation, *operands)``, or with sublists ``einsum(a, [0, 1], b, …)``."""
    first, *rest = args
    if isinstance(first, str):
        # the old form has all operands in one sequence
        operands = list(rest[0]) if len(rest) == 1 and isinstance(rest[0], (list, tuple)) and not _is_operand(rest[0]) else rest
        return first, operands
    equation = ",".join(_term(sublist) for sublist in args[1::2])
    if len(args) % 2 == 1:
        return f"{equation}->{_term(args[-1])}", list(args[:-1:2])
    return equation, list(args[::2])


def _is_operand(argument: Any) -> bool:
    return isinstance(argument, (Entries, Tensor))


def _term(sublist: Sequence[Any]) -> str:
    return "".join(_letters(sublist))


def _letters(sublist: Sequence[Any]) -> Iterator[str]:
    for number in sublist:
        if number is Ellipsis:
            yield "..."
        elif 0 <= number < len(LETTERS):
            yield LETTERS[number]
        else:
            raise ValueError(f"einsum(): subscript in subscript list is not within the valid range [0, 52): {number}")
