"""Masked functions on plain tensors, with the names and signatures of ``torch.masked``.

Plain tensors in, plain tensors out. If nothing is specified, the result is PyTorch's for an empty tensor
(sum 0, prod 1, mean, median, quantile, var, std NaN, amax and logsumexp -inf, amin inf, norm 0, any False, all True),
and its gradient is exactly 0. Positions (argmax, argmin) are 0 then, as in ``torch.masked``. At unspecified entries
softmax and softmin give 0, log_softmax -inf. To tell these results from others, use a MaskedTensor: its
reductions keep the pattern.

Example:
    >>> import torch
    >>> x = torch.tensor([[1., 2., float("nan")], [float("inf"), 5., 7.]])
    >>> m = torch.tensor([[True, True, False], [False, True, True]])
    >>> mean(x, 1, mask=m)
    tensor([1.5000, 6.0000])
"""

from maskgrad.functional.reductions import (
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    count,
    logsumexp,
    mean,
    median,
    norm,
    prod,
    quantile,
    std,
    sum,
    var,
)
from maskgrad.functional.rescaling import cumprod, cumsum, log_softmax, logaddexp, normalize, softmax, softmin

__all__ = [
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "count",
    "cumprod",
    "cumsum",
    "log_softmax",
    "logaddexp",
    "logsumexp",
    "mean",
    "median",
    "norm",
    "normalize",
    "prod",
    "quantile",
    "softmax",
    "softmin",
    "std",
    "sum",
    "var",
]
