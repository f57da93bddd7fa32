"""Covariance and correlation of incomplete observations: of two variables, over those that have both, as in pandas."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.mode import can_read
from maskgrad.semantics.entries import Entries, Operand, as_entries, filled, values_of
from maskgrad.semantics.facts import of_rule

PATTERN = (
    "specified where more observations (fweights: counted so often) than the correction have both variables"
)
GRADIENT = "torch's, over the observations that have both variables"


class Pairs(NamedTuple):
    """Sums over the observations that both variables of a pair have: (variables, variables)."""

    #: Centred sums of products, and of the squares of either variable.
    products: Tensor
    first: Tensor
    second: Tensor
    #: The number of observations, the sum of their weights, and of their weights times their ``aweights``.
    number: Tensor
    weight: Tensor
    twice: Tensor


def of_pairs(x: Tensor, mask: Tensor, weights: Tensor, aweights: Tensor) -> Pairs:
    """The sums from which all coefficients are computed: of one variable (observations,) with all others at a time."""
    if not len(x):
        return Pairs(x @ x.mH, *[(x @ x.mH).real] * 5)
    # Any constant may be subtracted from a variable; an infinite entry must not reach pairs in which it takes no part.
    finite = mask & torch.isfinite(x.detach())
    x = x - kernels.masked_mean(x.detach(), finite, (1,), True)[0]
    found = []
    for one, known in zip(x, mask, strict=True):
        both = mask & known
        number, weight = both.sum(1, keepdim=True), torch.where(both, weights, 0)
        total = weight.sum(1, keepdim=True)
        left, right = (
            _centred(torch.where(both, part, 0), weight / torch.where(total > 0, total, 1), number)
            for part in (one, x)
        )
        squares = ((part * part.conj()).real * weight for part in (left, right))
        sums = (left * right.conj() * weight, *squares, both, weight, weight * aweights)
        found.append([part.sum(1) for part in sums])
    return Pairs(*(torch.stack(parts) for parts in zip(*found, strict=True)))


def _centred(x: Tensor, share: Tensor, number: Tensor) -> Tensor:
    """``x`` less its mean, exactly 0 where they differ by rounding: equal values have no correlation."""
    mean = (x * share).sum(1, keepdim=True)
    off = x - mean
    known = off.detach()
    rounding = number * torch.finfo(known.dtype).eps * mean.detach().abs()
    return off - torch.where(known.abs() <= rounding, known, 0)


def cov(
    input: Operand,
    *,
    correction: int = 1,
    fweights: Operand | None = None,
    aweights: Operand | None = None,
) -> Entries:
    """``torch.cov``: observations with an unspecified weight are ignored."""
    if can_read(values_of(input)):
        _let_torch_object(input, correction, fweights, aweights)
    x, mask = _variables(input)
    ones = torch.ones_like(x.real.sum(0))
    given = [
        ones if factor is None else filled(factor, 1).reshape(-1).to(ones) for factor in (fweights, aweights)
    ]
    for factor in (fweights, aweights):
        if isinstance(factor, Entries):
            mask = mask & factor.mask.reshape(1, -1)
    found = of_pairs(x, mask, given[0] * given[1], given[1])
    freedom = found.weight - correction * found.twice / torch.where(found.weight > 0, found.weight, 1)
    # no estimate without degrees of freedom; a difference of equal values is 0 up to rounding
    specified = (found.number > 0) & (freedom > 8 * torch.finfo(freedom.dtype).eps * found.weight)
    values = torch.where(specified, found.products, 0) / torch.where(specified, freedom, 1)
    # one variable has one coefficient, without dimensions
    result = _result_type(values_of(input), aweights)
    return Entries(values.squeeze().to(result), specified.squeeze())


def corrcoef(input: Entries) -> Entries:
    """``torch.corrcoef``: means and variances, too, use the pair's common observations."""
    if can_read(input.values):
        safe = filled(input).detach()
        torch.corrcoef(safe[:1] if safe.ndim else safe)  # torch raises the error
    x, mask = _variables(input)
    ones = torch.ones_like(x.real.sum(0))
    found = of_pairs(x, mask, ones, ones)
    specified = found.number > 1  # as for the covariances
    varies = (found.first != 0) & (found.second != 0)
    deviations = (torch.where(varies, squares, 1).sqrt() for squares in (found.first, found.second))
    quotient = functools.reduce(torch.div, deviations, found.products)
    if quotient.is_complex():
        quotient = torch.complex(quotient.real.clip(-1, 1), quotient.imag.clip(-1, 1))
    else:
        quotient = quotient.clip(-1, 1)
    values = torch.where(varies | ~specified, quotient, torch.nan)
    return Entries(values.squeeze().to(_result_type(input.values, None)), specified.squeeze())


def _variables(input: Operand) -> tuple[Tensor, Tensor]:
    """Safe values (variables, observations), wide enough for differences of squares, and their mask."""
    values, mask = (part.reshape(1, -1) if part.ndim < 2 else part for part in as_entries(input))
    wide = torch.float64 if values.device.type != "mps" else torch.float32
    return torch.where(mask, values, 0).to(wide.to_complex() if values.is_complex() else wide), mask


def _result_type(values: Tensor, aweights: Operand | None) -> torch.dtype:
    dtype = values.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    return dtype if aweights is None else torch.result_type(torch.empty(1, dtype=dtype), values_of(aweights))


def _let_torch_object(
    input: Operand, correction: int, fweights: Operand | None, aweights: Operand | None
) -> None:
    """Call torch on one variable, for its errors about shapes, dtypes and negative weights."""
    given: list[Any] = [None if x is None else filled(x, 1).detach() for x in (input, fweights, aweights)]
    sample, *weights = given
    sample = sample[:1] if sample.ndim == 2 else sample
    torch.cov(sample, correction=correction, fweights=weights[0], aweights=weights[1])


OPERATIONS = tuple(of_rule(rule, "reductions", PATTERN, GRADIENT) for rule in (cov, corrcoef))
