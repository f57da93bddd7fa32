"""Convolutions: sums of products of data and weights; what they put around and between the data makes no product.

Zero padding, and the gaps that a stride of ``conv_transpose`` leaves, are zeros of the operation's own making. Products
with them say nothing about the data, so a window without a specified product is unspecified at the border as it is in
the middle. A window that holds no data at all, whatever the mask, is of the operation's making as a whole: specified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad.semantics.broken_products import NONE_AT_ALL
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import Operation, functions_named
from maskgrad.semantics.products import bias_mask, indicator, safe, sum_of_products, values_of
from maskgrad.semantics.signatures import bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from maskgrad.semantics.products import Operand

__all__ = ["OPERATIONS"]

PATTERN = "specified where at least one product of data and weight is, and where there is no data"
GRADIENT = "the other factor, where both are specified"

FORWARD = "input weight bias stride padding dilation groups"
TRANSPOSED = "input weight bias stride padding output_padding groups dilation"


def convolution(names: str, transposed: bool = False) -> Callable[..., Any]:
    """The rule for one direction; ``names`` are torch's for the arguments, in their order."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
        geometry = bound(names, args, kwargs)
        input, weight, bias = geometry.pop("input"), geometry.pop("weight"), geometry.pop("bias", None)
        groups = geometry.pop("groups", 1)

        def convolve(
            data: Tensor, kernel: Tensor, groups: int = groups, bias: Tensor | None = None
        ) -> Tensor:
            result: Tensor = function(data, kernel, bias, groups=groups, **geometry)
            return result

        values = sum_of_products(lambda x, w: convolve(x, w, bias=safe(bias)), (input, weight), convolve)
        if not values.numel():
            return Entries(values, torch.zeros_like(values, dtype=torch.bool))
        spatial = values_of(weight).ndim - 2
        unbatched = values.ndim == spatial + 1
        data = _batch_of_one(input) if unbatched else input
        mask = _any_product(data, weight, groups, convolve, transposed)
        if transposed or _pads(geometry.get("padding", 0)):
            mask = mask | (convolve(_ones(data), _ones(weight), 1) < NONE_AT_ALL)
        mask = (mask.squeeze(0) if unbatched else mask).expand(values.shape)
        return Entries(values, bias_mask(mask, _per_channel(bias, spatial)))

    return body


def _any_product(
    data: Operand, weight: Operand, groups: int, convolve: Callable[..., Tensor], transposed: bool
) -> Tensor:
    """Where a window has a product with two specified factors: (N or 1, out or 1, *positions).

    One masked operand costs a convolution of one channel a group instead of all channels.
    """
    if isinstance(data, Entries) and isinstance(weight, Entries):
        return convolve(data.mask.float(), weight.mask.float()) > NONE_AT_ALL
    if isinstance(data, Entries):
        in_group = data.mask.unflatten(1, (groups, -1)).any(2).float()
        found = convolve(in_group, _ones(weight, groups), groups) > NONE_AT_ALL
        outputs = values_of(weight).shape[1] if transposed else values_of(weight).shape[0] // groups
        return found if groups == 1 else found.repeat_interleave(outputs, 1)
    if isinstance(weight, Entries):
        taps = _transposed_taps(weight.mask, groups) if transposed else weight.mask.any(1, keepdim=True)
        return convolve(_ones(data), taps.float(), 1) > NONE_AT_ALL
    return torch.ones((), dtype=torch.bool, device=data.device)


def _transposed_taps(mask: Tensor, groups: int) -> Tensor:
    """Which taps each output channel has, from (in, out / groups, *taps): a kernel (1, out, *taps) for one channel."""
    per_group: Tensor = mask.unflatten(0, (groups, -1)).any(1)
    return per_group.flatten(0, 1).unsqueeze(0)


def _ones(operand: Operand, count: int = 1) -> Tensor:
    """That many kernels, or images, of one channel, of the operand's spatial shape."""
    values = values_of(operand)
    return torch.ones((count, 1, *values.shape[2:]), dtype=torch.float32, device=values.device)


def _batch_of_one(input: Operand) -> Operand:
    if isinstance(input, Entries):
        return Entries(input.values.unsqueeze(0), input.mask.unsqueeze(0))
    return input.unsqueeze(0)


def _per_channel(bias: Operand | None, spatial: int) -> Operand | None:
    """The bias laid along the channels."""
    if isinstance(bias, Entries):
        return Entries(bias.values, bias.mask.reshape(-1, *(1,) * spatial))
    return bias


def _pads(padding: Any) -> bool:
    widths = padding if isinstance(padding, (tuple, list)) else (padding,)
    return any(width not in (0, "valid") for width in widths)


def conv_tbc(function: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``conv_tbc``: a convolution over time of (time, batch, channel), with a kernel (taps, in, out)."""
    arguments = bound("input weight bias pad", args, kwargs)
    input, weight, bias = arguments["input"], arguments["weight"], arguments["bias"]
    pad = arguments.get("pad", 0)

    def convolve(data: Tensor, kernel: Tensor) -> Tensor:
        result: Tensor = function(data, kernel, kernel.new_zeros(kernel.shape[2]), pad)
        return result

    values = sum_of_products(lambda x, w: function(x, w, safe(bias), pad), (input, weight), convolve)
    mask = convolve(indicator(input), indicator(weight)) > NONE_AT_ALL
    if pad:
        lengths = values_of(input).shape[0], values_of(weight).shape[0]
        ones = [torch.ones(length, 1, 1, device=values.device) for length in lengths]
        mask = mask | (convolve(*ones) < NONE_AT_ALL)
    return Entries(values, bias_mask(mask, bias))


def _record(name: str, body: Callable[..., Any]) -> Operation:
    return Operation(
        f"nn.functional.{name}", "convolutions", functions_named(name)[0], body, PATTERN, GRADIENT, identity=0
    )


OPERATIONS: tuple[Operation, ...] = (
    *(_record(f"conv{n}d", convolution(FORWARD)) for n in (1, 2, 3)),
    *(_record(f"conv_transpose{n}d", convolution(TRANSPOSED, transposed=True)) for n in (1, 2, 3)),
    _record("conv_tbc", conv_tbc),
)
