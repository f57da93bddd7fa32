r"""Sums of products in which a factor is infinite or NaN, exact: it affects only fully specified products.

IEEE arithmetic makes NaN of 0 * inf, so replacing masked factors by 0 does not cancel an infinite partner. Here
the products with a non-finite factor (infinite or NaN) are counted instead, by the contraction itself: it is linear in
each factor, so fed with indicators and signs it counts. With the products that consist of specified factors, a
non-finite one among them,

.. math:: N \text{ all}, \quad M \text{ those with a NaN}, \quad Z \text{ those with a zero}, \quad
          S = \sum \operatorname{sign}, \qquad \text{positive} = (N - M - Z + S) / 2, \quad
          \text{negative} = (N - M - Z - S) / 2

the result is NaN if there is a NaN, a zero (0 * inf), or infinities of both signs; else infinite, or finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

#: Counts of products are floating-point sums. Algorithms that transform (FFT, Winograd) return them with rounding
#: errors, so that "at least one" is a number above this.
NONE_AT_ALL = 0.5


def fix_nonfinite(
    function: Callable[..., Tensor],
    factors: Sequence[Tensor],
    present: Sequence[Tensor],
    result: Tensor,
    pure: Callable[..., Tensor],
) -> Tensor:
    """``result``, which is IEEE's ``function(*factors)``, without the effect of non-finite factors on masked partners.

    Args:
        function: sums the products, and may add a bias to them.
        factors: 0 where masked.
        present: 1.0 where specified, else 0.0.
        result: has entries that are not finite.
        pure: ``function`` without a bias.
    """
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
    """Contribution of products with a non-finite factor to the sum: 0 if there are none, else inf, -inf or NaN.

    Args:
        product: the contraction, without a bias.
        factors: real, detached, 0 where masked.
        present: 1.0 where specified, else 0.0; of the shapes of the factors.
    """
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

    The gradient of a factor's specified entry sums products of gradients with its partners. A partner is either
    specified, or was replaced by 0; so 0 * inf occurs at unspecified entries only, where the gradient is not used.
    With three factors this fails: two partners, one of them 0, the other infinite, meet in one product.
    """
    return _Replaced.apply(result, values.detach())  # type: ignore[no-any-return,no-untyped-call]
