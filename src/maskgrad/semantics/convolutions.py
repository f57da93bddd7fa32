"""Convolutions: sums of products of data and weights; zeros added around and between the data make no products.

Zero padding, and the gaps that a stride of ``conv_transpose`` leaves, are zeros created by the operation. Products
with them contain no data, so a window without a specified product is unspecified at the border as in
the middle. A window without any data, whatever the mask, consists of created zeros only: specified.

That is ``specified="any"``. :mod:`maskgrad.nn.functional` has stricter criteria: windows whose centre is
specified, or all of whose products are, or those of each padded sequence alone. Unspecified entries make no
products, like the zeros that PyTorch appends to a sequence, so that only the number of its results must be found.
Patches (``F.unfold``, ``F.fold``) are the linear parts of a convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.kernels.smallest import any_of, is_complete, smallest
from maskgrad.semantics.entries import Entries, Operand, mask_of, rearranged, safe, values_of
from maskgrad.semantics.facts import record
from maskgrad.semantics.own_sizes import blocks, own_sizes
from maskgrad.semantics.products import NONE_AT_ALL, bias_mask, indicator, sum_of_products
from maskgrad.semantics.signatures import bound

PATTERN = "specified where at least one product of data and weight is, and where there is no data"
GRADIENT = "the other factor, where both are specified"

FORWARD = "input weight bias stride padding dilation groups specified"
TRANSPOSED = "input weight bias stride padding output_padding groups dilation specified"

KEEP_HOLES = 'Use specified="any" or "center", which support holes, or close the gaps first.'


def convolution(names: str, transposed: bool = False) -> Callable[..., Any]:
    """The rule for one direction; ``names`` are torch's for the arguments, in their order."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
        geometry = bound(names, args, kwargs)
        input, weight, bias = geometry.pop("input"), geometry.pop("weight"), geometry.pop("bias", None)
        groups, rule = geometry.pop("groups", 1), geometry.pop("specified", "any")

        def convolve(data: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
            return function(data, kernel, bias, groups=groups, **geometry)  # type: ignore[no-any-return]

        if isinstance(input, Entries) and isinstance(weight, torch.Tensor) and is_complete(input.mask):
            values = convolve(input.values, weight, bias=safe(bias))  # each window has all products
            return Entries(values, bias_mask(mask_of(values), _per_channel(bias, weight.ndim - 2)))
        values = sum_of_products(lambda x, w: convolve(x, w, bias=safe(bias)), (input, weight), convolve)
        if not values.numel():
            return Entries(values, torch.zeros_like(values, dtype=torch.bool))
        spatial = values_of(weight).ndim - 2
        data = rearranged(input, lambda part: part.unsqueeze(0)) if values.ndim == spatial + 1 else input
        kernel = values_of(weight).shape
        outputs = kernel[1] * groups if transposed else kernel[0]

        def each(found: Tensor) -> Tensor:  # of a group, for each channel of the result
            return found if found.shape[1] == 1 else found.repeat_interleave(outputs // found.shape[1], 1)

        def windows(mask: Tensor) -> Tensor:
            return each(_any_entry(_in_groups(mask, groups), kernel[2:], transposed, geometry))

        if rule == "sequence" and isinstance(data, Entries):
            mask = _own_results(data, kernel[2:], transposed, values.shape[-spatial:], geometry)
            if isinstance(weight, Entries):  # … where it has a product, or a window without data
                mask = mask & (_any_product(data, weight, windows, convolve) | ~windows(data.mask))
            return Entries(values, bias_mask(_whole(mask, values), _per_channel(bias, spatial)))
        mask, sizes = _any_product(data, weight, windows, convolve), enumerate(kernel[2:])
        if transposed or any(n <= max(_span(n, d, geometry), *paddings(n, d, geometry)) for d, n in sizes):
            mask = mask | ~windows(mask_of(values_of(data)))  # those without data: a step of a CNN gains 2 %
        if rule == "center" and isinstance(data, Entries):
            mask = mask & each(_middles(data.mask, groups, kernel, mask.shape[2:], geometry))
        elif rule == "all":
            mask = mask & _all_products(data, weight, convolve)
        return Entries(values, bias_mask(_whole(mask, values), _per_channel(bias, spatial)))

    return body


def _any_product(
    data: Operand, weight: Operand, windows: Callable[[Tensor], Tensor], convolve: Callable[..., Tensor]
) -> Tensor:
    """Return which windows have a product with two specified factors: (N or 1, out or 1, *positions)."""
    if not isinstance(weight, Entries):
        return windows(mask_of(data))
    return convolve(indicator(data), indicator(weight)) > NONE_AT_ALL


def _any_entry(mask: Tensor, kernel: torch.Size, transposed: bool, geometry: dict[str, Any]) -> Tensor:
    """Return which windows have a specified entry, along one dimension after the other; they grow in each round."""
    found = mask.byte()
    for d, taps in enumerate(kernel):
        stride, dilation = (of_dim(geometry.get(name, 1), d) for name in ("stride", "dilation"))
        before, after = paddings(taps, d, geometry)
        found = found.movedim(2, -1)  # as often as there are dimensions: the order is the same in the end
        if transposed:  # a window of the data between which zeros lie
            found = F.pad(found.unsqueeze(-1), (0, stride - 1)).flatten(-2)
            before = _span(taps, d, geometry) - before
            after, stride = before + of_dim(geometry.get("output_padding", 0), d) - (stride - 1), 1
        found = F.pad(found, (before, after)) if before or after else found
        length = 1
        while length < taps:
            more = min(length, taps - length)
            found = found[..., : -more * dilation] | found[..., more * dilation :]
            length += more
        found = found[..., ::stride]
    return found.bool()


def _in_groups(mask: Tensor, groups: int) -> Tensor:
    """Whether any channel of a group is specified: (N or 1, groups or 1, *positions), 1 where all share a mask."""
    few = smallest(mask)
    few = few.expand(*few.shape[:2], *mask.shape[2:])
    if few.shape[1] == 1:
        return few
    return any_of(few.unflatten(1, (groups, -1)), (2,), keepdim=False)


def _all_products(data: Operand, weight: Operand, convolve: Callable[..., Tensor]) -> Tensor:
    """Return which windows have no product with an unspecified factor."""
    every = convolve(*(indicator(values_of(x)) for x in (data, weight)))
    return every - convolve(indicator(data), indicator(weight)) < NONE_AT_ALL


def _middles(
    mask: Tensor, groups: int, kernel: torch.Size, sizes: torch.Size, geometry: dict[str, Any]
) -> Tensor:
    """Return whether the centre of a window is specified, in any channel of the group; it is outside the data.

    For windows of even length, the first of the two middle entries. With ``padding="same"``, and half the window on
    both sides, it is the entry at the position of the result.
    """
    found = _in_groups(mask, groups)
    for d, size in enumerate(sizes):
        stride, dilation = (of_dim(geometry.get(name, 1), d) for name in ("stride", "dilation"))
        before = dilation * (kernel[2 + d] - 1) // 2  # entries before the centre
        padding = geometry.get("padding", 0)
        pad = {"same": before, "valid": 0}[padding] if isinstance(padding, str) else of_dim(padding, d)
        place = torch.arange(size, device=mask.device) * stride + (before - pad)
        length = mask.shape[2 + d]
        inside = (place >= 0) & (place < length)
        picked = found.index_select(2 + d, place.clamp(0, max(length - 1, 0)))
        found = picked | ~inside.reshape(-1, *(1,) * (len(sizes) - 1 - d))
    return found


def _whole(mask: Tensor, values: Tensor) -> Tensor:
    """The mask of a batch in the shape of the values, which may be those of a single sample."""
    return (mask if mask.ndim == values.ndim else mask.squeeze(0)).expand(values.shape)


def _own_results(
    data: Entries, kernel: torch.Size, transposed: bool, results: torch.Size, geometry: dict[str, Any]
) -> Tensor:
    """Results that each sample has alone."""
    dims = range(2, 2 + len(results))
    sizes = own_sizes("a convolution of sequences", KEEP_HOLES, data.mask, dims, alike=(1,))
    own = [_own_result(size, kernel[d], d, geometry, transposed) for d, size in enumerate(sizes)]
    return blocks(own, dims, (*data.mask.shape[:2], *results))


def _own_result(size: Tensor, taps: int, d: int, geometry: dict[str, Any], transposed: bool) -> Tensor:
    """Number of results of sequences of ``size``; 0 where PyTorch refuses it alone: empty, or shorter than a window."""
    stride, span = of_dim(geometry.get("stride", 1), d), _span(taps, d, geometry)
    if transposed:
        more = of_dim(geometry.get("output_padding", 0), d) - 2 * of_dim(geometry.get("padding", 0), d)
        found = (size - 1) * stride + span + 1 + more
    else:
        found = (size + sum(paddings(taps, d, geometry)) - span - 1) // stride + 1
    return torch.where(size > 0, found.clamp(min=0), 0)


def _span(taps: int, d: int, geometry: dict[str, Any]) -> int:
    """Length of a window from its first entry to its last."""
    return of_dim(geometry.get("dilation", 1), d) * (taps - 1)


def paddings(taps: int, d: int, geometry: dict[str, Any]) -> tuple[int, int]:
    """Number of entries that a convolution adds before and after those of one dimension."""
    padding, span = geometry.get("padding", 0), _span(taps, d, geometry)
    if isinstance(padding, str):
        return (span // 2, span - span // 2) if padding == "same" else (0, 0)
    return (of_dim(padding, d),) * 2


def of_dim(option: Any, d: int) -> int:
    """The option of one dimension; PyTorch also takes one int for all."""
    if not isinstance(option, (tuple, list)):
        return int(option)
    return int(option[d] if len(option) > 1 else option[0])


def _per_channel(bias: Operand | None, spatial: int) -> Operand | None:
    """The bias broadcast along the channels."""
    if isinstance(bias, Entries):
        return Entries(bias.values, bias.mask.reshape(-1, *(1,) * spatial))
    return bias


def unfold(input: Entries, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Entries:
    """``F.unfold``: the patches around each position, as columns; the zeros of the padding are specified."""
    geometry = (kernel_size, dilation, padding, stride)
    missing = F.unfold(input.mask.logical_not(), *geometry)
    return Entries(F.unfold(input.values, *geometry), missing.logical_not())


def fold(input: Entries, *args: Any, **geometry: Any) -> Entries:
    """``F.fold``: the sum of the specified entries that overlap at each position; a gap is a created zero."""

    def count(mask: Tensor) -> Tensor:
        return F.fold(mask.float(), *args, **geometry)

    values, some = F.fold(safe(input), *args, **geometry), count(input.mask)
    every = count(torch.ones_like(input.mask))
    return Entries(values, (some > NONE_AT_ALL) | (every < NONE_AT_ALL))


MOVES = "moves with the values; zero padding is specified", "moves back with the values"
ADDS = (
    "specified where at least one entry that is added is, and in gaps",
    "the incoming gradient at each specified entry",
)
RULES = {
    **{f"conv{n}d": (convolution(FORWARD), "mask") for n in (1, 2, 3)},
    "conv_transpose1d": (convolution(TRANSPOSED, transposed=True), "mask"),
    **{f"conv_transpose{n}d": (convolution(TRANSPOSED, transposed=True), "") for n in (2, 3)},
}
NN: Any = torch._C._nn
OPERATIONS = (
    *(
        record(f"nn.functional.{name}", "convolutions", rule, PATTERN, GRADIENT, padded=padded)
        for name, (rule, padded) in RULES.items()
    ),
    record("nn.functional.unfold", "convolutions", unfold, *MOVES, functions=(F.unfold, NN.im2col)),
    record("nn.functional.fold", "convolutions", fold, *ADDS, functions=(F.fold, NN.col2im)),
)
