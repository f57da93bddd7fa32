"""Pooling, window by window with the unspecified entries deleted; interpolation, weight by weight."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry

__all__ = ["interpolation", "pooling"]

Result = tuple[Any, list[Tensor]]


def pooling(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Average, power and maximum pooling, and the inverse of the last."""
    name = entry.operation.name.removeprefix("nn.functional.")
    rank = int(name[-2])
    if name.startswith("max_unpool"):
        return unpooled(entry, call, leaves, masks)
    args, kwargs = call.with_tensors(leaves)
    dense = entry.function(*args, **kwargs)
    if name.startswith("fractional"):
        return maxima(dense, leaves[0], masks[0], rank, fractional_windows(entry, call, leaves, rank))
    kind = name[: -len("1d")]
    given = arguments(kind, args, kwargs)
    lengths = leaves[0].shape[-rank:]
    results = parts_of(dense)[0].shape[-rank:]
    windows = list(
        adaptive_windows(lengths, results)
        if kind.startswith("adaptive")
        else sliding_windows(lengths, results, given)
    )
    if "max" in kind:
        return maxima(dense, leaves[0], masks[0], rank, lambda *_: windows)
    x, mask = leaves[0].flatten(-rank), masks[0].flatten(-rank)
    found, known = [], []
    for positions, _, padding in windows:
        entries, there = torch.where(mask, x, 0)[..., positions], mask[..., positions]
        count = there.sum(-1)
        known.append(count > 0)
        if kind == "lp_pool":
            power = given["norm_type"]
            powers = torch.where(there, torch.where(there, entries, 1).pow(power), 0).sum(-1)
            powers = torch.where(known[-1], powers, 1)
            # torch divides by the positions of the window and multiplies by the size of the kernel
            total = powers * math.prod(as_list(given["kernel_size"], rank)) / len(positions)
            found.append((total.sign() * total.abs().relu()).pow(1 / power))
            continue
        divisor = given.get("divisor_override") or (count + padding).clamp(min=1)
        total = entries.sum(-1)
        found.append(
            total / divisor if x.is_floating_point() else torch.div(total, divisor, rounding_mode="trunc")
        )
    values = torch.stack(found, -1).reshape(dense.shape)
    return values.to(dense.dtype), [torch.stack(known, -1).reshape(dense.shape)]


NAMES = {
    "max_pool": "input kernel_size stride padding dilation ceil_mode return_indices",
    "avg_pool": "input kernel_size stride padding ceil_mode count_include_pad divisor_override",
    "lp_pool": "input norm_type kernel_size stride ceil_mode",
    "adaptive_max_pool": "input output_size return_indices",
    "adaptive_avg_pool": "input output_size",
}


def arguments(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(NAMES[kind].split(), args, strict=False)) | kwargs


def as_list(value: Any, rank: int) -> list[int]:
    numbers = list(value) if isinstance(value, (tuple, list)) else [value]
    return numbers * rank if len(numbers) == 1 else numbers


Window = tuple[list[int], int, int]


def sliding_windows(
    lengths: Sequence[int], results: Sequence[int], given: dict[str, Any]
) -> Iterator[Window]:
    """For each result: the flat positions of its window, how many with padding, how many paddings that count."""
    rank = len(lengths)
    kernel = as_list(given["kernel_size"], rank)
    stride = as_list(given.get("stride") or kernel, rank)
    pad, dilation = as_list(given.get("padding", 0), rank), as_list(given.get("dilation", 1), rank)
    for place in itertools.product(*map(range, results)):
        inside, size = [], 1
        for d in range(rank):
            start = place[d] * stride[d] - pad[d]
            reach = [start + k * dilation[d] for k in range(kernel[d])]
            inside.append([i for i in reach if 0 <= i < lengths[d]])
            size *= len([i for i in reach if i < lengths[d] + pad[d]])
        positions = flat(inside, lengths)
        yield positions, size, size - len(positions) if given.get("count_include_pad", True) else 0


def adaptive_windows(lengths: Sequence[int], results: Sequence[int]) -> Iterator[Window]:
    for place in itertools.product(*map(range, results)):
        inside = [
            range(math.floor(i * n / m), math.ceil((i + 1) * n / m))
            for i, n, m in zip(place, lengths, results, strict=True)
        ]
        positions = flat(inside, lengths)
        yield positions, len(positions), 0


def flat(inside: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[int]:
    positions = []
    for place in itertools.product(*inside):
        number = 0
        for i, n in zip(place, lengths, strict=True):
            number = number * n + i
        positions.append(number)
    return positions


def maxima(dense: Any, x: Tensor, mask: Tensor, rank: int, windows: Callable[..., Any]) -> Result:
    """The largest entry left in each window, and where it is: the first, unless a NaN follows."""
    leading = x.shape[: x.ndim - rank]
    values, index = [], []
    flat_x, flat_mask = x.reshape(-1, x.shape[-rank:].numel()), mask.reshape(-1, x.shape[-rank:].numel())
    for row in range(flat_x.shape[0]):
        for positions, *_ in windows(row):
            left = [i for i in positions if flat_mask[row, i]]
            best = max(left, key=lambda i: (flat_x[row, i].item(), -i)) if left else -1
            index.append(best)
            values.append(flat_x[row, best] if left else flat_x[row, :1].sum() * 0)
    shape = parts_of(dense)[0].shape
    assert shape[: len(leading)] == leading
    if not values:
        return dense, [torch.ones(shape, dtype=torch.bool) for _ in parts_of(dense)]
    places = torch.tensor(index).reshape(shape)
    maximum = torch.stack(values).reshape(shape)
    known = places >= 0
    if isinstance(dense, Tensor):
        return maximum, [known]
    return type(dense)((maximum, places)), [known, known]


def fractional_windows(entry: Entry, call: Call, leaves: Sequence[Tensor], rank: int) -> Callable[[int], Any]:
    """Windows at random places: asked of torch with numbers that show which position is the largest of a window."""
    x = leaves[0]
    lengths = x.shape[-rank:]

    def tops(numbers: Tensor) -> Tensor:
        args, kwargs = call.with_tensors([numbers.expand(x.shape).to(x.dtype), *leaves[1:]])
        return parts_of(entry.function(*args, **kwargs))[0]

    ranges = []
    for d in range(rank):
        ramp = torch.arange(lengths[d], dtype=x.dtype).reshape([-1 if i == d else 1 for i in range(rank)])
        last, first = tops(ramp), -tops(-ramp)
        ranges.append(
            (first.reshape(-1, *last.shape[-rank:]).long(), last.reshape(-1, *last.shape[-rank:]).long())
        )

    def windows(row: int) -> Iterator[Window]:
        for place in itertools.product(*map(range, ranges[0][0].shape[1:])):
            spot = (row, *place)
            positions = flat([range(int(a[spot]), int(b[spot]) + 1) for a, b in ranges], lengths)
            yield positions, len(positions), 0

    return windows


def unpooled(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Writes one entry after the other."""
    (x, indices, *_), (mask, indexed, *_) = leaves, masks
    rank = int(entry.name[-2])
    args, kwargs = call.with_tensors(leaves)
    dense = entry.function(*args, **kwargs)
    if not x.numel():
        return dense, [torch.ones(dense.shape, dtype=torch.bool)]
    room = dense.shape[-rank:].numel()
    places, known, sure = (t.reshape(-1, x.shape[-rank:].numel()) for t in (indices, mask, indexed))
    results, masks_out = [], []
    for row, entries in enumerate(torch.where(mask, x, 0).reshape(places.shape)):
        chosen = places[row][sure[row]]
        # torch sends a place's gradient to all who wrote there
        results.append(torch.zeros(room, dtype=x.dtype).scatter(0, chosen, entries[sure[row]]))
        masks_out.append(torch.ones(room, dtype=torch.bool).scatter(0, chosen, known[row][sure[row]]))
    return torch.stack(results).reshape(dense.shape), [torch.stack(masks_out).reshape(dense.shape)]


def interpolation(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """The weights are torch's derivatives: a result needs every entry from which one comes (all, where to look too)."""
    args, kwargs = call.with_tensors(leaves)
    values = entry.function(*args, **kwargs)
    x, mask = leaves[0], masks[0]
    if entry.variant == "area":
        return area(values, x, mask)
    known = torch.ones(values.shape, dtype=torch.bool)
    if mask.all() and len(masks) == 1:
        return values, [known]

    def interpolated(data: Tensor) -> Tensor:
        args, kwargs = call.with_tensors([data, *(leaf.detach() for leaf in leaves[1:])])
        return entry.function(*args, **kwargs)

    # one channel of one image at a time: only there are there weights
    for n in range(x.shape[0]):
        for place in (~mask[n].all(0)).nonzero():
            probe = torch.zeros(x.shape, dtype=x.dtype)
            probe[(n, slice(None), *place)] = 1
            weight = interpolated(probe)[n].abs() > 1e-9
            missing = ~mask[(n, slice(None), *place)]
            known[n] &= ~(weight & missing.reshape(-1, *[1] * (x.ndim - 2)))
    if len(masks) > 1:
        known &= masks[1].all(-1).unsqueeze(1)
    return values, [known]


def area(values: Tensor, x: Tensor, mask: Tensor) -> Result:
    """Adaptive average pooling."""
    rank = x.ndim - 2
    flat_x, flat_mask = torch.where(mask, x, 0).flatten(2), mask.flatten(2)
    found, known = [], []
    for positions, *_ in adaptive_windows(x.shape[2:], values.shape[2:]):
        count = flat_mask[..., positions].sum(-1)
        found.append(flat_x[..., positions].sum(-1) / count.clamp(min=1))
        known.append(count > 0)
    assert rank
    return torch.stack(found, -1).reshape(values.shape), [torch.stack(known, -1).reshape(values.shape)]
