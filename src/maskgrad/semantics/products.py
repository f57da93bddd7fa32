"""Sums of products: values without the products with a masked factor, and the mask of the sums.

IEEE arithmetic makes NaN of 0 * inf, so replacing masked factors by 0 does not cancel an infinite partner. The
products with a non-finite factor are counted instead, by the contraction itself: it is linear in each factor, so fed
with indicators and signs it counts. The result is NaN if one of them is, or is 0 * inf, or has infinities of both
signs; else infinite, or finite (docs/decisions/0004-nonfinite-factors-without-a-partner.md).

A contraction is described by its equation in Einstein's notation (``"ij,jk->ik"``), one letter per dimension:
the mask follows from the equation alone, the values come from torch's own function.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.kernels.filling.finite import is_finite
from maskgrad.kernels.smallest import intersected, reduced, smallest
from maskgrad.mode import can_read
from maskgrad.semantics.entries import Entries, Operand, safe, values_of

#: In torch's order: results that are not spelled out list capitals first, and number k of a sublist is letter k.
LETTERS = string.ascii_uppercase + string.ascii_lowercase


#: Counts of products are floating-point sums. Algorithms that transform (FFT, Winograd) return them with rounding
#: errors, so that "at least one" is a number above this.
NONE_AT_ALL = 0.5


class Equation(NamedTuple):
    """The letters of each factor of a sum of products, and those of the sum."""

    terms: tuple[str, ...]
    result: str


def letters(count: int) -> str:
    """``count`` different letters."""
    if count > len(LETTERS):
        raise ValueError(f"{count} dimensions of the factors together; at most {len(LETTERS)} are supported")
    return LETTERS[:count]


def written_out(text: str, ranks: Sequence[int]) -> Equation:
    """Give each dimension of an ellipsis a letter, and add an omitted result; ``torch.einsum`` accepts the text."""
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
        return Equation(full, right.replace("...", batch))
    return Equation(full, batch + "".join([letter for letter in LETTERS if left.count(letter) == 1]))


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
    """The sums of the products that have only specified factors; ``pure``: ``function`` without its bias."""
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
    if not (result.is_floating_point() or result.is_complex()) or not can_read(result) or is_finite(result):
        return result
    return fix_nonfinite(
        function, zeroed, [indicator(factor) for factor in factors], result, pure or function
    )


def any_product(equation: Equation, factors: Sequence[Operand], shape: torch.Size) -> Tensor:
    """The mask of a contraction: True where at least one product has only specified factors.

    Plain factors are ignored, so that one masked factor costs a reduction of its mask and no product.
    """
    parts = []
    for i, factor in enumerate(factors):
        masked = isinstance(factor, Entries)
        if not (factor.mask if masked else factor).numel():  # type: ignore[union-attr]  # no product, or no result
            return torch.zeros(shape, dtype=torch.bool, device=values_of(factors[0]).device)
        if masked:
            # a letter that occurs twice is a diagonal, which needs the full size
            twice = len(set(equation.terms[i])) < len(equation.terms[i])
            parts.append((factor.mask if twice else smallest(factor.mask), equation.terms[i]))  # type: ignore[union-attr]
    if not parts:
        return torch.ones((), dtype=torch.bool, device=values_of(factors[0]).device).expand(shape)
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


def fix_nonfinite(
    function: Callable[..., Tensor],
    factors: Sequence[Tensor],
    present: Sequence[Tensor],
    result: Tensor,
    pure: Callable[..., Tensor],
) -> Tensor:
    """IEEE's ``result`` without the effect of non-finite factors on partners that are not ``present``, and 0."""
    detached = [factor.detach() for factor in factors]
    nonfinite = [~torch.isfinite(factor) for factor in detached]
    if not any(bool(part.any()) for part in nonfinite):
        return result
    finite = function(
        *[torch.where(part, 0, factor) for part, factor in zip(nonfinite, factors, strict=True)]
    )
    if (
        result.is_complex()
    ):  # which has no sign if it is infinite: IEEE's result wherever a non-finite factor counts
        counts = [pure(*present[:i], part.float(), *present[i + 1 :]) for i, part in enumerate(nonfinite)]
        met = torch.stack(counts).amax(0) > NONE_AT_ALL
        return torch.where(met, result, finite) if bool(met.any()) else finite
    right = finite.detach() + _nonfinite_part(pure, detached, present)
    whole = torch.isfinite(right)
    values = torch.where(whole, finite, right.to(result.dtype))
    if bool(whole.all()):
        return values
    if len(factors) == 2:
        return _with_gradient_of(result, values)
    same = (result == right) | (result.isnan() & right.isnan())
    return torch.where(~whole & same, result, values)


def _nonfinite_part(
    product: Callable[..., Tensor], factors: Sequence[Tensor], present: Sequence[Tensor]
) -> Tensor:
    """The sum of products with a non-finite factor: 0 if there are none, else inf, -inf or NaN."""
    here = [p.double() for p in present]
    whole = [f.isfinite() for f in factors]
    known = [~f.isnan() for f in factors]
    signs = [torch.where(k, f, 0).double().sign() for f, k in zip(factors, known, strict=True)]

    def count(of: Sequence[Tensor], where: Sequence[Tensor] | None = None) -> Tensor:
        """Sums of products of ``of`` whose factors are all in ``where``; integers, also after an FFT."""
        kept = of if where is None else [torch.where(w, t, 0) for t, w in zip(of, where, strict=True)]
        return product(*kept).round()

    total = count(here, known)
    nans = count(here) - total
    sizes = [s.abs() for s in signs]
    nonzero = count(sizes, known) - count(sizes, whole)
    zeros = total - count(here, whole) - nonzero
    balance = count(signs, known) - count(signs, whole)
    positive, negative = (nonzero + balance) > 1, (nonzero - balance) > 1  # twice their numbers
    result = torch.where(positive, torch.inf, 0.0) + torch.where(negative, -torch.inf, 0.0)  # both: NaN
    return torch.where((nans > 0) | (zeros > 0), torch.nan, result)


class _Replaced(torch.autograd.Function):
    """The second argument's values, the first one's gradient."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, values: Tensor) -> Tensor:  # noqa: ARG004
        return values.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return grad, None


def _with_gradient_of(result: Tensor, values: Tensor) -> Tensor:
    """``values``, differentiated as ``result``: IEEE's gradients are right even where its values are not.

    For two factors 0 * inf occurs at unspecified entries only. Of three, two partners would meet in one product.
    """
    return _Replaced.apply(result, values.detach())  # type: ignore[no-any-return,no-untyped-call]
