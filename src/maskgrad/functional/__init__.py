"""Masked functions on plain tensors, with the names and signatures of ``torch.masked``.

Plain tensors in, plain tensors out. If nothing is specified, the result is PyTorch's for an empty tensor
(sum 0, prod 1, mean, median, quantile, var, std NaN, amax and logsumexp -inf, amin inf, norm 0, any False, all True),
and its gradient is exactly 0. Positions (argmax, argmin) are 0 then, as in ``torch.masked``. At unspecified entries
softmax and softmin give 0, log_softmax -inf. To tell these results from others, use a MaskedTensor: its
reductions keep the pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.functional.arguments import Dim, Dtype, Mask, entries_of, reduced, tabulated
from maskgrad.semantics import extrema, norms, order_statistics, reductions, scans, variance
from maskgrad.semantics import softmax as rules
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import Entries

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "count", "cumprod", "cumsum", "log_softmax",
    "logaddexp", "logsumexp", "mean", "median", "norm", "normalize", "prod", "quantile", "softmax",
    "softmin", "std", "sum", "var",
]  # fmt: skip

Rule = Callable[..., Entries]


def _reduction(
    rule: Rule,
    nothing: float | None,
    input: Tensor,
    dim: Dim = None,
    *,
    keepdim: bool = False,
    dtype: Dtype = None,
    mask: Mask = None,
) -> Tensor:
    """``nothing``: the value where nothing is specified; None: the rule's own."""
    found = rule(entries_of(input, mask, dtype), dim, keepdim)
    return found.values if nothing is None else reduced(found, dim, nothing)


def _truth(
    rule: Rule, _: None, input: Tensor, dim: Dim = None, *, keepdim: bool = False, mask: Mask = None
) -> Tensor:
    return rule(entries_of(input, mask), dim, keepdim).values


def _spread(
    rule: Rule,
    nothing: float,
    input: Tensor,
    dim: Dim = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: Dtype = None,
    mask: Mask = None,
) -> Tensor:
    found = rule(entries_of(input, mask, dtype), dim, unbiased, keepdim, correction=correction)
    return reduced(found, dim, nothing)


def _rescaling(
    rule: Rule, _: None, input: Tensor, dim: int, *, dtype: Dtype = None, mask: Mask = None
) -> Tensor:
    return rule(entries_of(input, mask, dtype), dim).values


def _norm(
    rule: Rule,
    _: None,
    input: Tensor,
    ord: float = 2.0,
    dim: Dim = None,
    *,
    keepdim: bool = False,
    dtype: Dtype = None,
    mask: Mask = None,
) -> Tensor:
    found = rule(entries_of(input, mask), ord, dim, keepdim, dtype=dtype)
    return reduced(found, dim, inf if ord < 0 else 0)


def _normalize(
    rule: Rule,
    _: None,
    input: Tensor,
    ord: float,
    dim: Dim = None,
    *,
    eps: float = 1e-12,
    dtype: Dtype = None,
    mask: Mask = None,
) -> Tensor:
    entries = entries_of(input, mask, dtype)
    return torch.where(entries.mask, entries.values, 0) / rule(entries, ord, dim, True).values.clamp_min(eps)


def _median(
    rule: Callable[..., tuple[Entries, Entries]],
    _: None,
    input: Tensor,
    dim: int = -1,
    *,
    keepdim: bool = False,
    dtype: Dtype = None,
    mask: Mask = None,
) -> Tensor:
    found = rule(entries_of(input, mask, dtype), dim, keepdim)[0]
    is_integer = not found.values.dtype.is_floating_point
    return reduced(found, dim, torch.iinfo(found.values.dtype).min if is_integer else nan)


def _quantile(
    rule: Rule,
    nothing: float,
    input: Tensor,
    q: float | Tensor,
    dim: int | None = None,
    *,
    keepdim: bool = False,
    interpolation: str = "linear",
    dtype: Dtype = None,
    mask: Mask = None,
) -> Tensor:
    entries = entries_of(input, mask, dtype)
    return reduced(rule(entries, q, dim, keepdim, interpolation=interpolation), dim, nothing)


OVER = "torch's, over the specified entries"


def _count(input: Entries, dim: Dim, keepdim: bool) -> Entries:
    return Entries(kernels.masked_count(input.mask, as_dims(dim, input.mask.ndim), keepdim), input.mask)


def _prod(input: Entries, dim: int | None, keepdim: bool) -> Entries:
    return reductions.prod(input, dim, keepdim and dim is not None)


# Rows: name, summary; gradient, dense equivalent; data of the example (nan: unspecified), its result.
# fmt: off
sum = tabulated(_reduction, reductions.sum, None, "sum",
    r"Sum of the specified entries, :math:`\sum_{i: m_i} x_i`; 0 where nothing is specified.",
    "the incoming one at specified entries", "torch.where(mask, input, 0).sum(dim)", "1., nan, 3.", "tensor(4.)")
mean = tabulated(_reduction, reductions.mean, nan, "mean",
    r"Mean of the specified entries, :math:`\sum_{i: m_i} x_i / \sum_i m_i`; NaN where nothing is specified.",
    "the incoming one divided by the number of specified entries", "input[mask].mean()", "1., nan, 3.", "tensor(2.)")
amax = tabulated(_reduction, extrema.amax, None, "amax",
    "Largest specified entry; -inf where nothing is specified, the least value of an integer dtype.",
    "shared equally among ties", "input[mask].amax()", "2., nan, 3.", "tensor(3.)")
amin = tabulated(_reduction, extrema.amin, None, "amin",
    "Smallest specified entry; inf where nothing is specified, the greatest value of an integer dtype.",
    "shared equally among ties", "input[mask].amin()", "2., nan, 3.", "tensor(2.)")
logsumexp = tabulated(_reduction, rules.logsumexp, None, "logsumexp",
    r"Logarithm of the sum of the exponentials, :math:`\log \sum_{i: m_i} e^{x_i}`; -inf where nothing is specified.",
    "the softmax of the specified entries", "input[mask].logsumexp(0)", "0., nan, 0.", "tensor(0.6931)")
prod = tabulated(_reduction, _prod, None, "prod",
    r"Product of the specified entries, :math:`\prod_{i: m_i} x_i`; 1 where nothing is specified.",
    "the product of the other specified entries", "torch.where(mask, input, 1).prod(dim)", "2., nan, 3.", "tensor(6.)")
argmax = tabulated(_reduction, extrema.argmax, None, "argmax",
    "Position in the original tensor of the first largest specified entry; 0 where nothing is specified.",
    "", "", "1., nan, 3.", "tensor(2)")
argmin = tabulated(_reduction, extrema.argmin, None, "argmin",
    "Position in the original tensor of the first smallest specified entry; 0 where nothing is specified.",
    "", "", "4., nan, 3.", "tensor(2)")
count = tabulated(_truth, _count, None, "count", r"Number of specified entries, :math:`\sum_i m_i`, as int64.",
    "", "mask.sum(dim)", "0., nan, 0.", "tensor(2)")
any = tabulated(_truth, reductions.any, None, "any",
    "Return whether any specified entry is true; False where nothing is specified.",
    "", "input[mask].any()", "0., nan, 0.", "tensor(False)")
all = tabulated(_truth, reductions.all, None, "all",
    "Return whether every specified entry is true; True where nothing is specified.",
    "", "input[mask].all()", "1., nan, 1.", "tensor(True)")
var = tabulated(_spread, variance.var, nan, "var",
    r"Variance, :math:`\sum_{i: m_i} (x_i - \bar x)^2 / (n - c)` of n specified entries; NaN if n is at most c.",
    r":math:`2 (x_i - \bar x) / (n - c)` at specified entries", "input[mask].var()", "1., nan, 3.", "tensor(2.)")
std = tabulated(_spread, variance.std, nan, "std",
    "Standard deviation of the specified entries, the square root of :func:`var`.",
    "that of the root, and 0 where the deviation is 0, as in torch", "input[mask].std()", "1., nan, 1.", "tensor(0.)")
softmax = tabulated(_rescaling, rules.softmax, None, "softmax",
    r"Probabilities of the specified entries, :math:`e^{x_i} / \sum_{j: m_j} e^{x_j}`.",
    OVER, "input[mask].softmax(0)", "1., nan, 1.", "tensor([0.5000, 0.0000, 0.5000])", ", 0")
log_softmax = tabulated(_rescaling, rules.log_softmax, None, "log_softmax",
    r"Logarithms of :func:`softmax`, :math:`x_i - \log \sum_{j: m_j} e^{x_j}`.",
    OVER, "input[mask].log_softmax(0)", "1., nan, 1.", "tensor([-0.6931,    -inf, -0.6931])", ", 0")
softmin = tabulated(_rescaling, rules.softmin, None, "softmin",
    r"Softmax of the negated entries, :math:`e^{-x_i} / \sum_{j: m_j} e^{-x_j}`.",
    OVER, "(-input[mask]).softmax(0)", "1., nan, 1.", "tensor([0.5000, 0.0000, 0.5000])", ", 0")
cumsum = tabulated(_rescaling, scans.cumsum, None, "cumsum",
    r"Running sum of the specified entries, :math:`\sum_{j \le i: m_j} x_j` where ``i`` is specified.",
    "the sum of those from here on, where specified", "input[mask].cumsum(0)", "1., nan, 3.", "tensor([1., ..., 4.])",
    ", 0")
cumprod = tabulated(_rescaling, scans.cumprod, None, "cumprod",
    r"Running product of the specified entries, :math:`\prod_{j \le i: m_j} x_j` where ``i`` is specified.",
    OVER, "input[mask].cumprod(0)", "2., nan, 3.", "tensor([2., ..., 6.])", ", 0")
norm = tabulated(_norm, norms.vector_norm, None, "norm",
    r"Vector norm, :math:`(\sum_{i: m_i} |x_i|^p)^{1/p}`; where nothing is specified 0, or inf for a negative order.",
    "torch's, 0 at a zero vector", "torch.linalg.vector_norm(input[mask])", "3., nan, 4.", "tensor(5.)")
normalize = tabulated(_normalize, norms.vector_norm, None, "normalize",
    r"Division by the norm of the specified entries, :math:`x_i / \max(\lVert x \rVert_p, \varepsilon)`.",
    OVER, "F.normalize(input[mask], ord, 0)", "3., nan, 4.", "tensor([0.6000, 0.0000, 0.8000])", ", 2., 0")
median = tabulated(_median, order_statistics.median, None, "median",
    "Median, the lower of two; where nothing is specified NaN, the least value of an integer dtype, as in torch.",
    "to the entry that is the median", "input[mask].median()", "5., nan, 3.", "tensor(3.)")
quantile = tabulated(_quantile, order_statistics.quantile, nan, "quantile",
    "Quantiles ``q``, between 0 and 1, a number or a 1-D tensor; NaN where nothing is specified.",
    "to the one or two entries beside it", "input[mask].quantile(q)", "5., nan, 3.", "tensor(3.5000)", ", 0.25")
# fmt: on


def logaddexp(
    input: Tensor, other: Tensor, *, dtype: Dtype = None, input_mask: Mask = None, other_mask: Mask = None
) -> Tensor:
    r"""Logarithm of the sum of two exponentials, :math:`\log(e^{x_i} + e^{y_i})`; unspecified ones are ignored.

    -inf where neither is specified.

    Gradient: the weight of each specified term. Dense equivalent: ``torch.logaddexp`` with -inf where unspecified.

    Args:
        input: plain tensor of any shape.
        other: plain tensor of the same shape.
        dtype: dtype to compute in and to return.
        input_mask: as ``mask`` of :func:`sum`.
        other_mask: the same for ``other``.

    Returns:
        Plain tensor of the common shape. Gradient at unspecified entries: exactly 0.

    Raises:
        TypeError, ValueError: as :func:`sum`.

    Example:
        >>> x, y = torch.tensor([0., float("nan")]), torch.tensor([0., 2.])
        >>> logaddexp(x, y, input_mask=torch.tensor([True, False]))
        tensor([0.6931, 2.0000])

    Source: https://docs.pytorch.org/docs/stable/masked.html (name and signature).
    """
    pair = (
        entries_of(input, input_mask, dtype, "input_mask"),
        entries_of(other, other_mask, dtype, "other_mask"),
    )
    values, mask = (torch.stack(torch.broadcast_tensors(*parts)) for parts in zip(*pair, strict=True))
    return rules.logsumexp(Entries(values, mask), 0).values
