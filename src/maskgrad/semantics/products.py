"""Sums of products: values without the products with a masked factor, and the mask of the sums.

A contraction is described by its equation in Einstein's notation (``"ij,jk->ik"``), one letter per dimension:
the mask follows from the equation alone, the values come from torch's own function.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.kernels.smallest import intersected, reduced, smallest
from maskgrad.mode import TRACED, can_read, mode
from maskgrad.semantics.entries import Entries, Operand, adds_up_to_finite, safe, values_of
from maskgrad.semantics.nonfinite_products import NONE_AT_ALL, fix_nonfinite

#: In torch's order: results that are not spelled out list capitals first, and number k of a sublist is letter k.
LETTERS = string.ascii_uppercase + string.ascii_lowercase


class Equation(NamedTuple):
    """The dimensions that the factors of a sum of products share.

    Attributes:
        terms: the letters of each factor.
        result: the letters of the sum.
        summed: for each term the positions of the letters missing in the result; None if a letter occurs twice.
        is_straight: whether one term, without its summed letters, has its letters in the positions of the result.
    """

    terms: tuple[str, ...]
    result: str
    summed: tuple[tuple[int, ...] | None, ...]
    is_straight: tuple[bool, ...]


def equation(terms: tuple[str, ...], result: str) -> Equation:
    """Parse an equation."""
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
    """``count`` different letters."""
    if count > len(LETTERS):
        raise ValueError(f"{count} dimensions of the factors together; at most {len(LETTERS)} are supported")
    return LETTERS[:count]


def written_out(text: str, ranks: Sequence[int]) -> Equation:
    """Give every dimension of an ellipsis its own letter, and add the result if the equation omits it.

    Args:
        text: valid, as ``torch.einsum`` has accepted it.
        ranks: the number of dimensions of each factor.
    """
    return (_written_out if mode() in TRACED else _remembered)(text, tuple(ranks))


def _written_out(text: str, ranks: tuple[int, ...]) -> Equation:
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    hidden = [rank - len(term) + 3 if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    unused = [letter for letter in LETTERS if letter not in text]
    # dimensions of an ellipsis are aligned at the right, as in broadcasting
    batch = "".join(unused[: max(hidden)])
    full = tuple(
        [term.replace("...", batch[len(batch) - size :]) for term, size in zip(terms, hidden, strict=True)]
    )
    if arrow:
        return equation(full, right.replace("...", batch))
    return equation(full, batch + "".join([letter for letter in LETTERS if left.count(letter) == 1]))


#: traced graphs do not read caches
_remembered = functools.lru_cache(maxsize=1024)(_written_out)


def einsum_call(args: Sequence[Any]) -> tuple[str, list[Any]]:
    """Equation and operands of ``einsum(equation, *operands)``, or with sublists: ``einsum(a, [0, 1], b, [1, 2])``."""
    first, *rest = args
    if isinstance(first, str):
        # in an older form all operands are in one sequence (entries are a tuple, too)
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


def indicator(operand: Operand) -> Tensor:
    """1 where specified: the product of indicators counts the products with only specified factors."""
    if isinstance(operand, Entries):
        return operand.mask.float()
    return torch.ones_like(operand, dtype=torch.float32, requires_grad=False)


def contracted(
    function: Callable[..., Tensor],
    factors: Sequence[Operand],
    equation: Equation,
    pure: Callable[..., Tensor] | None = None,
) -> Entries:
    """A contraction: the sums of the products that have only specified factors, specified where there is one.

    Args:
        function: sums the products of ``equation``, and may add a bias to them.
        factors: the factors, at least one masked.
        equation: the dimensions that the factors share.
        pure: the same without a bias, if ``function`` adds one.
    """
    values = sum_of_products(function, factors, pure)
    return Entries(values, any_product(equation, factors, values.shape))


def sum_of_products(
    function: Callable[..., Tensor],
    factors: Sequence[Operand],
    pure: Callable[..., Tensor] | None = None,
) -> Tensor:
    """``function(*factors)``, linear in each factor, in which a masked factor cancels its partners.

    0 * inf is NaN, so a specified infinity whose partners are all masked would still show. If values may
    be read (eagerly, on the CPU) such results are recomputed: finite products once, and IEEE's result only
    where a non-finite factor has specified partners.
    """
    zeroed = [safe(factor) for factor in factors]
    result = function(*zeroed)
    if not (result.is_floating_point() or result.is_complex()) or not can_read(result):
        return result
    if adds_up_to_finite(result):
        return result
    return fix_nonfinite(
        function, zeroed, [indicator(factor) for factor in factors], result, pure or function
    )


def any_product(equation: Equation, factors: Sequence[Operand], shape: torch.Size) -> Tensor:
    """The mask of a contraction: True where at least one product has only specified factors.

    Plain factors are ignored, so that one masked factor costs a reduction of its mask and no
    product; the masks of several are multiplied in pairs.

    Args:
        equation: the dimensions that the factors share.
        factors: at most all of them masked.
        shape: shape of the result.
    """
    parts, at = [], -1
    for i, factor in enumerate(factors):
        masked = isinstance(factor, Entries)
        if not (factor.mask if masked else factor).numel():  # type: ignore[union-attr]  # no product, or no result
            return torch.zeros(shape, dtype=torch.bool, device=values_of(factors[0]).device)
        if masked:
            # a letter that occurs twice is a diagonal, which needs the full size
            few = factor.mask if equation.summed[i] is None else smallest(factor.mask)  # type: ignore[union-attr]
            parts.append((few, equation.terms[i]))
            at = i
    if not parts:
        return torch.ones((), dtype=torch.bool, device=values_of(factors[0]).device).expand(shape)
    if len(parts) == 1 and equation.is_straight[at]:
        summed = equation.summed[at]
        if summed is not None:
            return reduced(parts[0][0], summed).expand(shape)
    while len(parts) > 1:
        (left, its), (right, others), *rest = parts
        needed = equation.result + "".join(term for _, term in rest)
        kept = "".join(dict.fromkeys(letter for letter in its + others if letter in needed))
        counts = torch.einsum(f"{its},{others}->{kept}", left.float(), right.float())
        # clamped at every step: counts of a long chain would overflow, and inf * 0 is NaN
        parts = [(counts > NONE_AT_ALL, kept), *rest]
    return _laid_out(*parts[0], equation.result, shape)


def _laid_out(mask: Tensor, term: str, result: str, shape: torch.Size) -> Tensor:
    """Reduce a mask over the letters missing in the result, and expand it along those missing in the mask."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:  # a diagonal, which torch puts last
            first, last = term.index(letter), term.rindex(letter)
            mask = mask.diagonal(0, first, last)
            term = term[:first] + term[first + 1 : last] + term[last + 1 :] + letter
    summed = tuple(i for i, letter in enumerate(term) if letter not in result)
    if summed:
        mask = reduced(mask, summed).squeeze(summed)
        term = "".join(letter for letter in term if letter in result)
    order = [term.index(letter) for letter in result if letter in term]
    if order != sorted(order):
        mask = mask.permute(order)
    for i, letter in enumerate(result):
        if letter not in term:
            mask = mask.unsqueeze(i)
    return mask.expand(shape)


def bias_mask(mask: Tensor, bias: Operand | None) -> Tensor:
    """Intersect with the mask of a bias: an unspecified bias leaves its results unspecified."""
    return intersected(mask, bias.mask) if isinstance(bias, Entries) else mask
