"""Equations in Einstein's notation, written out: one letter for each dimension, no ellipsis, the result spelled out."""

from __future__ import annotations

import functools
import string
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

#: In torch's order: results that are not spelled out list capitals first, and number k of a sublist is letter k.
LETTERS = string.ascii_uppercase + string.ascii_lowercase


class Equation(NamedTuple):
    """Which dimensions of the factors of a sum of products meet.

    Attributes:
        terms: the letters of each factor.
        result: those of the sum.
        summed: for each term the positions of the letters that the result lacks; None if a letter is there twice.
        is_straight: whether one term, less its summed letters, has the places of its letters in the result.
    """

    terms: tuple[str, ...]
    result: str
    summed: tuple[tuple[int, ...] | None, ...]
    is_straight: tuple[bool, ...]


def equation(terms: tuple[str, ...], result: str) -> Equation:
    """An equation, and what follows from it."""
    summed = tuple(
        [
            None if len(set(term)) < len(term) else tuple([i for i, c in enumerate(term) if c not in result])
            for term in terms
        ]
    )
    straight = tuple([_is_straight(term, result) for term in terms])
    return Equation(terms, result, summed, straight)


def _is_straight(term: str, result: str) -> bool:
    if len(term) != len(result):
        return False
    return all(c == r or c not in result for c, r in zip(term, result, strict=True))


def letters(count: int) -> str:
    """That many different letters."""
    if count > len(LETTERS):
        raise ValueError(f"{count} dimensions of the factors together; there are letters for {len(LETTERS)}")
    return LETTERS[:count]


def written_out(text: str, ranks: Sequence[int]) -> Equation:
    """Give every dimension under an ellipsis a letter of its own, and name the result if the equation does not.

    Args:
        text: valid, as ``torch.einsum`` has accepted it.
        ranks: the number of dimensions of each factor.
    """
    return (_written_out if torch.compiler.is_compiling() else _remembered)(text, tuple(ranks))


def _written_out(text: str, ranks: tuple[int, ...]) -> Equation:
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    hidden = [rank - len(term) + 3 if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    unused = [letter for letter in LETTERS if letter not in text]
    # dimensions under an ellipsis are aligned at the right, like those of operands that are broadcast
    batch = "".join(unused[: max(hidden)])
    full = tuple(
        [term.replace("...", batch[len(batch) - size :]) for term, size in zip(terms, hidden, strict=True)]
    )
    if arrow:
        return equation(full, right.replace("...", batch))
    return equation(full, batch + "".join([letter for letter in LETTERS if left.count(letter) == 1]))


#: a graph that is being traced reads no cache
_remembered = functools.lru_cache(maxsize=1024)(_written_out)


def einsum_call(args: Sequence[Any]) -> tuple[str, list[Any]]:
    """Equation and operands of ``einsum(equation, *operands)``, or with sublists: ``einsum(a, [0, 1], b, [1, 2])``."""
    first, *rest = args
    if isinstance(first, str):
        # in an older form all operands are in one sequence (entries are a tuple, too, of their own type)
        in_sequence = len(rest) == 1 and type(rest[0]) in (list, tuple)
        return first, list(rest[0]) if in_sequence else rest
    text = ",".join([_term(sublist) for sublist in args[1::2]])
    if len(args) % 2 == 1:
        return f"{text}->{_term(args[-1])}", list(args[:-1:2])
    return text, list(args[::2])


def _term(sublist: Sequence[Any]) -> str:
    return "".join([_letter(number) for number in sublist])


def _letter(number: Any) -> str:
    if number is Ellipsis:
        return "..."
    if not 0 <= number < len(LETTERS):
        raise ValueError(
            f"einsum(): subscript in subscript list is not within the valid range [0, 52), found {number}"
        )
    return LETTERS[number]
