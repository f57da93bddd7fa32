"""Average and power-average pooling: over the specified entries of each window; a window without any is unspecified.

The zeros of padding are specified entries created by the operation: with
``count_include_pad=True`` (the default) they count, as in PyTorch. They do not make a window specified.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.mode import mode
from maskgrad.semantics.entries import Entries, fill, widened
from maskgrad.semantics.facts import record

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


def precise(x: Tensor) -> torch.dtype:
    """Double precision, where there is any: ONNX Runtime neither pools nor interpolates it."""
    return torch.float32 if x.device.type == "mps" or mode() == "export" else torch.float64


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
        safe, few = fill(input, mask, 0), shared(mask, rank)
        found = AVERAGES[rank - 1](few.float(), *geometry, **options) > 0
        # shares of the divisor: 1 less the missing entries counts the padding, if it is to be counted
        share = 1 - AVERAGES[rank - 1]((~few).to(precise(few)), *geometry, **options)
        if not values.is_floating_point():
            sums = _sums(safe, rank, geometry, options)
            inside = _sums(torch.ones_like(safe), rank, geometry, options)
            divisor = inside / AVERAGES[rank - 1](
                torch.ones_like(safe, dtype=precise(safe)), *geometry, **options
            )
            by = (
                (divisor * share).round().clamp(min=1).long()
                if divisor_override is None
                else divisor_override
            )
            return Entries(torch.div(sums, by, rounding_mode="trunc"), found.expand(sums.shape))
        if divisor_override is not None:
            options["divisor_override"] = divisor_override
        means = AVERAGES[rank - 1](widened(safe), *geometry, **options)
        if divisor_override is None:  # exactly 1 where nothing is missing
            means = means / torch.where(found, share, 1).to(means.dtype)
        return Entries(means.to(values.dtype), found.expand(means.shape))

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
    share = pooled(shared(mask, rank).to(means.dtype))
    means = means / torch.where(share > 0, share, 1)
    return Entries(means.to(values.dtype), (share > 0).expand(means.shape))


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
