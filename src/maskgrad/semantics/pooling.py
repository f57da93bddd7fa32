"""Pooling over the specified entries of each window; a window without any is unspecified.

The zeros of padding are specified entries created by the operation: with ``count_include_pad=True`` (the default) they
count in averages, as in PyTorch. They do not make a window specified. The maximum is looked up at its index, which
counts in the original: a specified -inf is not mistaken for the filler. Unpooling writes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.mode import mode
from maskgrad.semantics.entries import Entries, Operand, fill, filled, mask_of, values_of, widened
from maskgrad.semantics.facts import Operation, record
from maskgrad.semantics.signatures import bound

#: Up to which a quotient of integers may be off.
ROUNDING = 1e-12
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
        if divisor_override is not None:
            options["divisor_override"] = divisor_override
        exact = not values.is_floating_point()
        means = AVERAGES[rank - 1](safe.to(precise(safe)) if exact else widened(safe), *geometry, **options)
        if divisor_override is None:  # exactly 1 where nothing is missing
            means = means / torch.where(found, share, 1).to(means.dtype)
        if exact:  # 3 may have become 2.9999
            means = (means * (1 + ROUNDING)).trunc()
        return Entries(means.to(values.dtype), found.expand(means.shape))

    return rule


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


def maxima(
    input: Entries, rank: int, pooled: Callable[[Tensor], tuple[Tensor, Tensor]], of_mask: Tensor
) -> tuple[Entries, Entries]:
    """The largest specified entry of each window, and its index, which ``pooled`` finds; ``of_mask`` may be shared."""
    values, mask = input
    lowest = -torch.inf if values.is_floating_point() else torch.iinfo(values.dtype).min
    largest, index = pooled(torch.where(mask, values, lowest).detach())
    found, first = pooled(of_mask)
    # A window of only -inf: take the first specified entry, not a filler.
    index = torch.where(largest == lowest, first, index)
    known = (found > 0).expand(index.shape)
    # Windows of padding alone point outside the data.
    size = values.shape[-rank:].numel()
    places = index.clamp(0, size - 1).flatten(-rank)
    results = filled(input).flatten(-rank).gather(-1, places).reshape(index.shape)
    return Entries(results, known), Entries(index, known)


#: torch's names for the arguments.
MAXIMA = {
    "max_pool": "input kernel_size stride padding dilation ceil_mode return_indices",
    "adaptive_max_pool": "input output_size return_indices",
    "fractional_max_pool": "input kernel_size output_size output_ratio return_indices _random_samples",
}


def maximum(stem: str, rank: int) -> Callable[..., Any]:
    """The rule of a maximum pooling; indices count in the original."""
    plain = getattr(F, f"{stem}{rank}d_with_indices")
    alone = [
        getattr(namespace, f"{stem}{rank}d") for namespace in ((F, torch) if stem == "max_pool" else (F,))
    ]

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = bound(MAXIMA[stem], args, kwargs)
        input, both = given.pop("input"), given.pop("return_indices", False)
        values, of_mask = input.values, shared(input.mask, rank).float()
        if given.get("stride") == ():
            given["stride"] = None
        if stem == "fractional_max_pool":
            of_mask = input.mask.to(values.dtype)
            if given.get("_random_samples") is None:  # drawn once, as torch does, for values and mask
                size = (values.shape[0] if values.ndim == rank + 2 else 1, values.shape[-rank - 1], rank)
                given["_random_samples"] = torch.rand(size, dtype=values.dtype, device=values.device)
        results = maxima(input, rank, lambda x: plain(x, **given), of_mask)
        return results if both or function not in alone else results[0]

    return body


def unpooling(rank: int) -> Callable[..., Any]:
    """Write each entry to its index; the zeros in between are specified; masked entries are written, too.

    An entry whose index is unspecified is dropped.
    """

    def rule(
        function: Callable[..., Any],
        input: Operand,
        indices: Operand,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        output_size: Any = None,
    ) -> Entries:
        if getattr(function, "__module__", "") == "torch._C._nn":  # only the indices are masked
            return _written(input, indices, tuple(kernel_size), rank)
        kernel = as_tuple(kernel_size, rank)
        stride = kernel if stride is None else as_tuple(stride, rank)
        if rank == 3 and min(stride) <= 0:  # PyTorch checks only this rank
            raise RuntimeError(f"strides should be greater than zero, but got stride: {stride}")
        size = F._unpool_output_size(  # type: ignore[attr-defined]
            values_of(input), kernel, stride, as_tuple(padding, rank), output_size
        )
        return _written(input, indices, tuple(size), rank)

    return rule


def _written(input: Operand, indices: Operand, size: tuple[int, ...], rank: int) -> Entries:
    values, places = values_of(input), values_of(indices)
    if values.ndim not in (rank + 1, rank + 2):
        raise RuntimeError(
            f"Input to max_unpooling{max(rank, 2)}d should be a {max(rank, 2) + 1}d or {max(rank, 2) + 2}d Tensor, but "
            f"got a tensor with {values.ndim + (rank == 1)} dimensions."
        )
    if values.shape != places.shape:
        raise RuntimeError(
            "Expected shape of indices to be same as that of the input tensor "
            f"{tuple(values.shape)} but got indices tensor with shape: {tuple(places.shape)}"
        )
    leading, room = values.shape[: values.ndim - rank], torch.Size(size).numel()
    places = filled(indices, room).flatten(-rank)  # one extra position, removed at the end
    mask, more = mask_of(input), room + 1 if isinstance(indices, Entries) else room
    zeros, ones = values.new_zeros(*leading, more), mask.new_ones(*leading, more)
    result = zeros.scatter(-1, places, filled(input).flatten(-rank))
    known = ones.scatter(-1, places, mask.flatten(-rank))
    shape = (*leading, *size)
    return Entries(result[..., :room].reshape(shape), known[..., :room].reshape(shape))


NN: Any = torch._C._nn
PATTERN = "specified where the window has a specified entry"
SHARE = PATTERN, "an equal share for each specified entry"
CHOSEN = PATTERN, "that of the chosen entry"
WRITTEN = "zeros are specified; written entries keep their mask", "moves back with the entries"
RULES: tuple[tuple[str, Any, tuple[str, str]], ...] = (
    ("avg_pool", average, SHARE),
    ("adaptive_avg_pool", adaptive, SHARE),
    ("lp_pool", power_average, (PATTERN, "torch's, over the specified entries")),
    *((stem, functools.partial(maximum, stem), CHOSEN) for stem in MAXIMA),
    ("max_unpool", unpooling, WRITTEN),
)


def _record(stem: str, n: int, rule: Callable[..., Any], words: tuple[str, str]) -> Operation:
    found = [f for namespace in (F, torch, NN) if (f := getattr(namespace, f"{stem}{n}d_with_indices", None))]
    facts: dict[str, Any] = {
        "padded": "mask" if n == 1 and words is not WRITTEN else "",
        "extra": tuple(found),
    }
    namespaces = (F,) if stem == "fractional_max_pool" else (F, torch, NN)
    return record(f"nn.functional.{stem}{n}d", "pooling", rule(n), *words, namespaces=namespaces, **facts)


OPERATIONS = tuple(
    _record(stem, n, rule, words)
    for stem, rule, words in RULES
    for n in (1, 2, 3)
    if hasattr(F, f"{stem}{n}d")
)
