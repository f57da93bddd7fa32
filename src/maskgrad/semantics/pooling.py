"""Average and power-average pooling: over the specified entries of each window; a window without any is unspecified.

The zeros of padding are specified entries created by the operation: with
``count_include_pad=True`` (the default) they count, as in PyTorch. They do not make a window specified.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.semantics.entries import Entries, fill, widened
from maskgrad.semantics.facts import record
from maskgrad.semantics.nonfinite_products import NONE_AT_ALL

AVERAGES: tuple[Any, ...] = (torch.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


def as_tuple(value: Any, rank: int) -> tuple[int, ...]:
    """Return one int per spatial dimension, from all forms that torch accepts."""
    if isinstance(value, (tuple, list)):
        return tuple(value) * rank if len(value) == 1 else tuple(value)
    return (value,) * rank


def shared(mask: Tensor, rank: int) -> Tensor:
    """The mask once, if batch or channels share one (an expanded view): pooling it is that much cheaper."""
    for dim in range(mask.ndim - rank):
        if mask.shape[dim] > 1 and mask.stride(dim) == 0:
            mask = mask.narrow(dim, 0, 1)
    return mask


def sliding_sizes(
    lengths: Sequence[int],
    results: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Number of positions in each window, with padding (less the overhang of ceil_mode), and within the data."""
    both, inside = [], []
    for length, result, width, step, pad in zip(lengths, results, kernel, stride, padding, strict=True):
        start = torch.arange(result, device=device) * step - pad
        end = (start + width).clamp(max=length + pad)
        both.append(end - start)
        inside.append(end.clamp(max=length) - start.clamp(min=0))
    return _outer(both), _outer(inside)


def adaptive_sizes(lengths: Sequence[int], results: Sequence[int], device: torch.device) -> Tensor:
    """Number of positions in each window of an adaptive pooling."""
    sizes = []
    for length, result in zip(lengths, results, strict=True):
        place = torch.arange(result, device=device)
        sizes.append(-((-(place + 1) * length) // result) - place * length // result)
    return _outer(sizes)


def _outer(sizes: list[Tensor]) -> Tensor:
    """Product of one size per dimension: (*results)."""
    rank = len(sizes)
    shaped = [size.reshape([-1 if d == i else 1 for d in range(rank)]) for i, size in enumerate(sizes)]
    return math.prod(shaped[1:], start=shaped[0])


def average(rank: int) -> Callable[..., Any]:
    """The rule of ``avg_pool``: the sum of the specified entries over their number, or over ``divisor_override``."""

    def rule(
        input: Entries,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Entries:
        values, mask = input
        stride = kernel_size if stride is None or stride == () else stride
        geometry = (as_tuple(kernel_size, rank), as_tuple(stride, rank), as_tuple(padding, rank))
        options: dict[str, Any] = {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}

        def divisors(pooled: Tensor) -> tuple[Tensor, Tensor]:
            """Torch's divisor of each window, and the number of padding positions in it."""
            both, inside = sliding_sizes(
                values.shape[-rank:], pooled.shape[-rank:], *geometry, device=values.device
            )
            return (both, both - inside) if count_include_pad else (inside, torch.zeros_like(inside))

        def pooled(x: Tensor) -> Tensor:
            result: Tensor = AVERAGES[rank - 1](x, *geometry, **options)
            return result

        safe = fill(input, mask, 0)
        if not values.is_floating_point():
            sums, count = (_sums(x, rank, geometry, options) for x in (safe, mask.to(safe.dtype)))
            by = (count + divisors(sums)[1]).clamp(min=1) if divisor_override is None else divisor_override
            return Entries(torch.div(sums, by, rounding_mode="trunc"), count > 0)
        if divisor_override is not None:
            options["divisor_override"] = divisor_override
        means = pooled(widened(safe))
        sizes, extra = divisors(means)
        shares = pooled(shared(mask, rank).to(means.dtype))
        count = (shares * (sizes if divisor_override is None else divisor_override)).round()
        if divisor_override is None:
            # exactly 1 where nothing is missing
            means = means * (sizes / (count + extra).clamp(min=1)).to(means.dtype)
        found = (count.abs() > NONE_AT_ALL).expand(means.shape)
        return Entries(means.to(values.dtype), found)

    return rule


def _sums(x: Tensor, rank: int, geometry: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The sum of the integers of each window; PyTorch has no ``divisor_override`` in one dimension."""
    if rank > 1:
        return AVERAGES[rank - 1](x, *geometry, **options, divisor_override=1)
    lifted = [(neutral, *option) for neutral, option in zip((1, 1, 0), geometry, strict=True)]
    return AVERAGES[1](x.unsqueeze(-2), *lifted, **options, divisor_override=1).squeeze(-2)


def adaptive_average(input: Entries, pooled: Callable[[Tensor], Tensor], rank: int) -> Entries:
    """The mean over the specified entries of the windows of ``pooled``."""
    values, mask = input
    means = pooled(widened(fill(input, mask, 0)))
    sizes = adaptive_sizes(values.shape[-rank:], means.shape[-rank:], values.device)
    count = (pooled(shared(mask, rank).to(means.dtype)) * sizes).round()
    means = means * (sizes / count.clamp(min=1)).to(means.dtype)
    return Entries(means.to(values.dtype), (count > NONE_AT_ALL).expand(means.shape))


def adaptive(rank: int) -> Callable[..., Any]:
    """The rule of ``adaptive_avg_pool``."""
    plain = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[rank - 1]

    def rule(input: Entries, output_size: Any) -> Entries:
        return adaptive_average(input, lambda x: plain(x, output_size), rank)

    return rule


def power_average(rank: int) -> Callable[..., Any]:
    """The rule of ``lp_pool``: the root of the sum of the powers of the specified entries."""
    pool = AVERAGES[rank - 1]

    def rule(
        input: Entries, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> Entries:
        values, mask = input
        options = (kernel_size, kernel_size if stride is None else stride, 0, ceil_mode)
        # 1 has a finite derivative for any power, 0 does not change the sum
        powers = torch.where(mask, torch.where(mask, values, 1).pow(norm_type), 0)
        found = pool(shared(mask, rank).to(widened(values).dtype), *options) > 0
        means = torch.where(found, pool(widened(powers), *options), 1)
        size = math.prod(as_tuple(kernel_size, rank))
        result = (torch.sign(means) * torch.relu(torch.abs(means))).mul(size).pow(1.0 / norm_type)
        return Entries(result.to(values.dtype), found.expand(result.shape))

    return rule


PATTERN = "specified where the window has a specified entry"
SHARE = "an equal share for each specified entry"
RULES = (
    ("avg_pool", average, SHARE),
    ("adaptive_avg_pool", adaptive, SHARE),
    ("lp_pool", power_average, "torch's, over the specified entries"),
)

OPERATIONS = tuple(
    record(name, "pooling", rule(n), PATTERN, gradient, namespaces=(F, torch, torch._C._nn), padded=padded)
    for stem, rule, gradient in RULES
    for n, padded in ((1, "mask"), (2, ""), (3, ""))
    if (name := f"nn.functional.{stem}{n}d")
)
