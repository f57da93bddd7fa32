"""Running sums and products over the specified entries of a plain tensor."""

from __future__ import annotations

from torch import Tensor

from maskgrad.functional.arguments import Dtype, Mask, documented, entries_of
from maskgrad.semantics import scans

__all__ = ["cumprod", "cumsum"]


@documented
def cumsum(input: Tensor, dim: int, *, dtype: Dtype = None, mask: Mask = None) -> Tensor:
    r"""Running sum of the specified entries, :math:`\sum_{j \le i: m_j} x_j` where ``i`` is specified.

    Gradient: the incoming ones from here on, at specified entries. Dense equivalent: ``input[mask].cumsum(0)``.

    Example:
        >>> cumsum(torch.tensor([1., float("nan"), 3.]), 0, mask=torch.tensor([True, False, True]))[[0, 2]]
        tensor([1., 4.])
    """
    return scans.cumsum(entries_of(input, mask), dim, dtype=dtype).values


@documented
def cumprod(input: Tensor, dim: int, *, dtype: Dtype = None, mask: Mask = None) -> Tensor:
    r"""Running product of the specified entries, :math:`\prod_{j \le i: m_j} x_j` where ``i`` is specified.

    Gradient: torch's, over the specified entries. Dense equivalent: ``input[mask].cumprod(0)``.

    Example:
        >>> cumprod(torch.tensor([2., float("nan"), 3.]), 0, mask=torch.tensor([True, False, True]))[[0, 2]]
        tensor([2., 6.])
    """
    return scans.cumprod(entries_of(input, mask), dim, dtype=dtype).values
