"""Average and power-average pooling: over the specified entries of each window; a window without any is unspecified.

The zeros that padding puts around the data are specified entries of the operation's own making: with
``count_include_pad=True`` (the default) they count, as in PyTorch. They do not make a window specified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from maskgrad.semantics.entries import Entries, fill, widened
from maskgrad.semantics.facts import record
from maskgrad.semantics.nonfinite_products import NONE_AT_ALL
from maskgrad.semantics.signatures import bound
from maskgrad.semantics.windows import adaptive_sizes, as_tuple, shared, sliding_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from maskgrad.semantics.facts import Operation

SLIDING = "input kernel_size stride padding ceil_mode count_include_pad divisor_override"


def average(rank: int) -> Callable[..., Any]:
    """The rule of ``avg_pool``: the sum of the specified entries by their number, or by ``divisor_override``."""
    plain = (torch.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
        given = bound(SLIDING, args, kwargs)
        input = given.pop("input")
        if given.get("stride") is None or given["stride"] == ():
            given["stride"] = given["kernel_size"]

        def pooled(x: Tensor) -> Tensor:
            return plain(x, **given)

        values, mask = input
        divisor = given.get("divisor_override")
        safe = fill(input, mask, 0)
        if not values.is_floating_point():
            return _average_of_integers(safe, mask, given, rank)
        means = pooled(widened(safe))
        divisors, extra = _divisors(values, means, given, rank)
        shares = pooled(_one_each(mask, rank, means.dtype))
        count = (shares * (divisors if divisor is None else divisor)).round()
        if divisor is None:
            # exactly 1 where nothing is missing
            means = means * (divisors / (count + extra).clamp(min=1)).to(means.dtype)
        found = (count.abs() > NONE_AT_ALL).expand(means.shape)
        return Entries(means.to(values.dtype), found)

    return body


def _one_each(mask: Tensor, rank: int, dtype: torch.dtype) -> Tensor:
    return shared(mask, rank).to(dtype)


def _divisors(values: Tensor, pooled: Tensor, given: dict[str, Any], rank: int) -> tuple[Tensor, Tensor]:
    """By what torch divides each window, and how many of these are padding."""
    names = ("kernel_size", "stride", "padding")
    kernel, stride, padding = (as_tuple(given.get(name, 0), rank) for name in names)
    lengths, results = values.shape[-rank:], pooled.shape[-rank:]
    both, inside = sliding_sizes(lengths, results, kernel, stride, padding, values.device)
    if not given.get("count_include_pad", True):
        return inside, torch.zeros_like(inside)
    return both, both - inside


def _average_of_integers(safe: Tensor, mask: Tensor, given: dict[str, Any], rank: int) -> Entries:
    """The quotient of two integers, rounded towards zero."""
    divisor = given.get("divisor_override")
    options = {**given, "divisor_override": 1}
    if rank == 1:  # which has no divisor_override
        safe, mask = safe.unsqueeze(-2), mask.unsqueeze(-2)
        for name, neutral in (("kernel_size", 1), ("stride", 1), ("padding", 0)):
            options[name] = (neutral, *as_tuple(given.get(name, 0), 1))
    plain = F.avg_pool3d if rank == 3 else F.avg_pool2d
    sums, count = plain(safe, **options), plain(mask.to(safe.dtype), **options)
    if rank == 1:
        sums, count = sums.squeeze(-2), count.squeeze(-2)
        safe = safe.squeeze(-2)
    _, extra = _divisors(safe, sums, given, rank)
    by = (count + extra).clamp(min=1) if divisor is None else divisor
    return Entries(torch.div(sums, by, rounding_mode="trunc"), count > 0)


def adaptive_average(input: Entries, pooled: Callable[[Tensor], Tensor], rank: int) -> Entries:
    """The mean over the specified entries of windows that ``pooled`` takes the mean of."""
    values, mask = input
    means = pooled(widened(fill(input, mask, 0)))
    sizes = adaptive_sizes(values.shape[-rank:], means.shape[-rank:], values.device)
    count = (pooled(_one_each(mask, rank, means.dtype)) * sizes).round()
    means = means * (sizes / count.clamp(min=1)).to(means.dtype)
    return Entries(means.to(values.dtype), (count > NONE_AT_ALL).expand(means.shape))


def adaptive(rank: int) -> Callable[..., Any]:
    """The rule of ``adaptive_avg_pool``."""
    plain = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[rank - 1]

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
        given = bound("input output_size", args, kwargs)
        return adaptive_average(given["input"], lambda x: plain(x, given["output_size"]), rank)

    return body


def power_average(rank: int) -> Callable[..., Any]:
    """The rule of ``lp_pool``: the root of the sum of the powers of the specified entries."""
    pool = (torch.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
        given = bound("input norm_type kernel_size stride ceil_mode", args, kwargs)
        (values, mask), power = given["input"], given["norm_type"]
        kernel, stride = given["kernel_size"], given.get("stride")
        options = (kernel, kernel if stride is None else stride, 0, given.get("ceil_mode", False))
        # 1 has a finite derivative whatever the power, 0 takes no part in the sum
        powers = torch.where(mask, torch.where(mask, values, 1).pow(power), 0)
        found = pool(_one_each(mask, rank, widened(values).dtype), *options) > 0
        means = torch.where(found, pool(widened(powers), *options), 1)
        size = 1
        for width in as_tuple(kernel, rank):
            size *= width
        result = (torch.sign(means) * torch.relu(torch.abs(means))).mul(size).pow(1.0 / power)
        return Entries(result.to(values.dtype), found.expand(result.shape))

    return body


PATTERN = "specified where the window has a specified entry"
SHARE = "an equal share for each specified entry"
RANKS = (1, 2, 3)


def _record(name: str, body: Callable[..., Any], gradient: str) -> Operation:
    functions = [getattr(namespace, name, None) for namespace in (F, torch, torch._C._nn)]
    known = tuple(dict.fromkeys(function for function in functions if function is not None))
    return record(f"nn.functional.{name}", "pooling", body, PATTERN, gradient, functions=known)


OPERATIONS = (
    *(_record(f"avg_pool{n}d", average(n), SHARE) for n in RANKS),
    *(_record(f"adaptive_avg_pool{n}d", adaptive(n), SHARE) for n in RANKS),
    *(_record(f"lp_pool{n}d", power_average(n), "torch's, over the specified entries") for n in RANKS),
)
