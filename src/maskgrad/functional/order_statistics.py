"""Medians and quantiles of the specified entries of a plain tensor."""

from __future__ import annotations

from torch import Tensor

from maskgrad.functional.arguments import Dtype, Mask, documented, entries_of
from maskgrad.semantics import order_statistics

__all__ = ["median", "quantile"]


@documented
def median(
    input: Tensor, dim: int = -1, *, keepdim: bool = False, dtype: Dtype = None, mask: Mask = None
) -> Tensor:
    """Middle one of the specified entries, the lower of two.

    Gradient: to the entry that is the median. Dense equivalent: ``input[mask].median()``, slot by slot.

    Example:
        >>> median(torch.tensor([5., float("nan"), 1., 3.]), mask=torch.tensor([True, False, True, True]))
        tensor(3.)
    """
    values: Tensor = order_statistics.median(entries_of(input, mask, dtype), dim, keepdim)[0].values
    return values


@documented
def quantile(
    input: Tensor,
    q: float | Tensor,
    dim: int | None = None,
    *,
    keepdim: bool = False,
    interpolation: str = "linear",
    dtype: Dtype = None,
    mask: Mask = None,
) -> Tensor:
    """Quantiles ``q`` (between 0 and 1; a number or a 1-D tensor) of the specified entries.

    Gradient: to the one or two entries between which it lies. Dense equivalent: ``input[mask].quantile(q)``.

    Example:
        >>> quantile(torch.tensor([5., float("nan"), 1., 3.]), 0.25, mask=torch.tensor([True, False, True, True]))
        tensor(2.)
    """
    entries = entries_of(input, mask, dtype)
    return order_statistics.quantile(entries, q, dim, keepdim, interpolation=interpolation).values
