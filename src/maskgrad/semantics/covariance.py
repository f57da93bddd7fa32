r"""Covariance and correlation of incomplete observations.

Each coefficient is torch's for its two variables over the observations in which both are specified ("pairwise
complete", as in pandas). With the mask :math:`m`, weights :math:`w` and variables :math:`x` that are centred by any
constant, matrix products give all of them at once:

.. math:: P_{ij} = \sum_o w_o x_{io} \bar x_{jo} - S_{ij} \bar S_{ji} / N_{ij}, \quad
          S_{ij} = \sum_o w_o x_{io} m_{jo}, \quad N_{ij} = \sum_o w_o m_{io} m_{jo}.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.mode import can_read
from maskgrad.semantics.entries import Entries, Operand, as_entries, filled, values_of
from maskgrad.semantics.facts import of_rule
from maskgrad.semantics.products import sum_of_products

PATTERN = (
    "specified where more observations (fweights: counted so often) than the correction have both variables"
)
GRADIENT = "torch's, over the observations that have both variables"


class PairMoments(NamedTuple):
    """Of each pair of variables, over the observations that have both: (variables, variables)."""

    #: P, the centred sum of products.
    products: Tensor
    #: The centred and the plain sum of the squares of the first variable.
    squares: Tensor
    plain_squares: Tensor
    #: The number of observations, and the sum of their weights.
    number: Tensor
    weight: Tensor


def moments(x: Tensor, mask: Tensor, weights: Tensor | None) -> PairMoments:
    """The sums from which all coefficients are computed, from (variables, observations), weights (observations,)."""
    # Any constant may be subtracted from a variable; its own mean keeps the differences of squares accurate. No
    # gradient flows through it, and one infinite entry must not reach pairs in which it takes no part.
    center, _ = kernels.masked_mean(x.detach(), mask & torch.isfinite(x.detach()), (1,), True)
    x = torch.where(mask, x - center, 0)
    weighted = x if weights is None else x * weights
    here = Entries(torch.ones((), dtype=x.real.dtype, device=x.device).expand(mask.T.shape), mask.T)

    def over_pairs(first: Tensor, second: Entries) -> Tensor:
        return sum_of_products(torch.matmul, (Entries(first, mask), second))

    present = mask.to(x.real.dtype)
    count = present @ present.T
    weight = count if weights is None else (present * weights) @ present.T
    divisor = torch.where(weight > 0, weight, 1)
    totals = over_pairs(weighted, Entries(here.values.to(x.dtype), here.mask))
    products = over_pairs(weighted, Entries(x.mH, here.mask)) - totals * totals.mH / divisor
    plain_squares = over_pairs((weighted * x.conj()).real, here)
    squares = plain_squares - (totals * totals.conj()).real / divisor
    # a single observation is its own mean, exactly
    alone = count <= 1
    return PairMoments(
        torch.where(alone, 0, products), torch.where(alone, 0, squares), plain_squares, count, weight
    )


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
    weights = None
    for factor in (fweights, aweights):
        if factor is not None:
            if isinstance(factor, Entries):
                mask = mask & factor.mask.reshape(1, -1)
            part = filled(factor, 1).reshape(-1).to(x.real.dtype)
            weights = part if weights is None else weights * part
    result = _result_type(values_of(input), aweights)
    found = moments(x, mask, weights)
    freedom = found.weight - correction
    if aweights is not None and correction != 0:
        assert weights is not None  # aweights is one of its factors
        present = mask.to(x.real.dtype)
        squared = (present * (weights * filled(aweights, 1).reshape(-1))) @ present.T
        freedom = found.weight - correction * squared / torch.where(found.weight > 0, found.weight, 1)
    # no estimate without degrees of freedom; a difference of equal values is 0 up to rounding
    specified = (found.number > 0) & (freedom > 8 * torch.finfo(freedom.dtype).eps * found.weight)
    values = torch.where(specified, found.products, 0) / torch.where(specified, freedom, 1)
    # one variable has one coefficient, without dimensions
    return Entries(values.squeeze().to(result), specified.squeeze())


def corrcoef(input: Entries) -> Entries:
    """``torch.corrcoef``: means and variances, too, use the pair's common observations."""
    if can_read(input.values):
        safe = filled(input).detach()
        torch.corrcoef(safe[:1] if safe.ndim else safe)  # torch raises the error
    x, mask = _variables(input)
    found = moments(x, mask, None)
    specified = found.number > 1  # as for the covariances
    # the variance of a constant is a difference of equal numbers: 0 up to rounding
    rounding = found.plain_squares * found.number * torch.finfo(found.squares.dtype).eps
    usable = (found.squares > rounding) & (found.squares > rounding).T
    deviation = torch.where(usable, found.squares, 1).sqrt()
    quotient = found.products / deviation / deviation.T
    if quotient.is_complex():
        quotient = torch.complex(quotient.real.clip(-1, 1), quotient.imag.clip(-1, 1))
    else:
        quotient = quotient.clip(-1, 1)
    values = torch.where(usable | ~specified, quotient, torch.nan)
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
