"""Maximum pooling over the specified entries of each window, and its inverse, which writes.

Indices count in the original. The maximum is looked up at its index, so that a specified -inf is told from the filler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from maskgrad.semantics.entries import Entries, Operand, values_of
from maskgrad.semantics.facts import record
from maskgrad.semantics.signatures import bound
from maskgrad.semantics.windows import as_tuple, shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from maskgrad.semantics.facts import Operation

SLIDING = "input kernel_size stride padding dilation ceil_mode return_indices"
FRACTIONAL = "input kernel_size output_size output_ratio return_indices _random_samples"


def maxima(
    input: Entries, rank: int, pooled: Callable[[Tensor], tuple[Tensor, Tensor]], of_mask: Tensor
) -> tuple[Entries, Entries]:
    """The largest specified entry of each window, and its index.

    Args:
        input: (…, *lengths), with ``rank`` lengths.
        rank: the number of spatial dimensions.
        pooled: torch's function, which returns maxima and where they are.
        of_mask: the mask as numbers; batch and channels may be of size 1.
    """
    values, mask = input
    lowest = -torch.inf if values.is_floating_point() else torch.iinfo(values.dtype).min
    largest, index = pooled(torch.where(mask, values, lowest).detach())
    found, first = pooled(of_mask)
    # A window of nothing but -inf: the first of the entries that are specified, not of the fillers.
    index = torch.where(largest == lowest, first, index)
    known = (found > 0).expand(index.shape)
    # Windows of padding alone point outside the data.
    size = values.shape[-rank:].numel()
    places = index.clamp(0, size - 1).flatten(-rank)
    results = torch.where(mask, values, 0).flatten(-rank).gather(-1, places).reshape(index.shape)
    return Entries(results, known), Entries(index, known)


def _sliding(rank: int) -> Callable[..., Any]:
    plain = (F.max_pool1d_with_indices, F.max_pool2d_with_indices, F.max_pool3d_with_indices)[rank - 1]
    both = WITH_INDICES[rank]

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = bound(SLIDING, args, kwargs)
        input, wants_indices = given.pop("input"), given.pop("return_indices", False)
        if given.get("stride") == ():
            given["stride"] = None
        results = maxima(input, rank, lambda x: plain(x, **given), shared(input.mask, rank).float())
        return results if wants_indices or function in both else results[0]

    return body


def _adaptive(rank: int) -> Callable[..., Any]:
    plain = (
        F.adaptive_max_pool1d_with_indices,
        F.adaptive_max_pool2d_with_indices,
        F.adaptive_max_pool3d_with_indices,
    )[rank - 1]
    both = ADAPTIVE_WITH_INDICES[rank]

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = bound("input output_size return_indices", args, kwargs)
        input, size = given["input"], given["output_size"]
        results = maxima(input, rank, lambda x: plain(x, size), shared(input.mask, rank).float())
        return results if given.get("return_indices") or function in both else results[0]

    return body


def _fractional(rank: int) -> Callable[..., Any]:
    plain = {2: F.fractional_max_pool2d_with_indices, 3: F.fractional_max_pool3d_with_indices}[rank]

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = bound(FRACTIONAL, args, kwargs)
        input, wants_indices = given.pop("input"), given.pop("return_indices", False)
        values = input.values
        if given.get("_random_samples") is None:  # drawn once, as torch does, for values and mask
            batch = values.shape[0] if values.ndim == rank + 2 else 1
            given["_random_samples"] = torch.rand(
                batch, values.shape[-rank - 1], rank, dtype=values.dtype, device=values.device
            )
        results = maxima(input, rank, lambda x: plain(x, **given), input.mask.to(values.dtype))
        return results if wants_indices or function is plain else results[0]

    return body


def _unpooling(rank: int) -> Callable[..., Any]:
    """Writes each entry to its index; the zeros in between are specified, and what is unspecified is written too.

    An entry whose index is unspecified goes nowhere.
    """

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
        if getattr(function, "__module__", "") == "torch._C._nn":  # the indices alone are masked
            given = bound("input indices output_size", args, kwargs)
            return _written(given["input"], given["indices"], tuple(given["output_size"]), rank)
        given = bound("input indices kernel_size stride padding output_size", args, kwargs)
        kernel = as_tuple(given["kernel_size"], rank)
        stride = kernel if given.get("stride") is None else as_tuple(given["stride"], rank)
        padding = as_tuple(given.get("padding", 0), rank)
        if rank == 3 and min(stride) <= 0:  # of the others PyTorch does not ask it
            raise RuntimeError(f"strides should be greater than zero, but got stride: {stride}")
        size = F._unpool_output_size(  # type: ignore[attr-defined]
            values_of(given["input"]), kernel, stride, padding, given.get("output_size")
        )
        return _written(given["input"], given["indices"], tuple(size), rank)

    return body


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
    if isinstance(indices, Entries):
        places = torch.where(indices.mask, places, room)  # one place more than there is, cut off at the end
    places = places.flatten(-rank)
    mask = input.mask if isinstance(input, Entries) else torch.ones_like(values, dtype=torch.bool)
    more = room + 1 if isinstance(indices, Entries) else room
    zeros, ones = values.new_zeros(*leading, more), mask.new_ones(*leading, more)
    result = zeros.scatter(-1, places, torch.where(mask, values, 0).flatten(-rank))
    known = ones.scatter(-1, places, mask.flatten(-rank))
    shape = (*leading, *size)
    return Entries(result[..., :room].reshape(shape), known[..., :room].reshape(shape))


NN: Any = torch._C._nn

#: The spellings that return indices too.
WITH_INDICES: dict[int, tuple[Any, ...]] = {
    1: (F.max_pool1d_with_indices, torch.max_pool1d_with_indices),
    2: (F.max_pool2d_with_indices, NN.max_pool2d_with_indices),
    3: (F.max_pool3d_with_indices, NN.max_pool3d_with_indices),
}
ADAPTIVE_WITH_INDICES: dict[int, tuple[Any, ...]] = {
    1: (F.adaptive_max_pool1d_with_indices, torch.adaptive_max_pool1d),
    2: (F.adaptive_max_pool2d_with_indices, NN.adaptive_max_pool2d),
    3: (F.adaptive_max_pool3d_with_indices, NN.adaptive_max_pool3d),
}


PATTERN = "specified where the window has a specified entry"
WRITTEN = "zeros are specified; what is written keeps its mask"


def _record(name: str, body: Callable[..., Any], *functions: Any, pattern: str = PATTERN) -> Operation:
    gradient = "that of the entry that was chosen" if pattern == PATTERN else "moves back with the entries"
    functions = (getattr(F, name), *functions)
    return record(f"nn.functional.{name}", "pooling", body, pattern, gradient, functions=functions)


RANKS = (1, 2, 3)
OPERATIONS = (
    *(
        _record(f"max_pool{n}d", _sliding(n), getattr(torch, f"max_pool{n}d"), *WITH_INDICES[n])
        for n in RANKS
    ),
    *(_record(f"adaptive_max_pool{n}d", _adaptive(n), *ADAPTIVE_WITH_INDICES[n]) for n in RANKS),
    _record("fractional_max_pool2d", _fractional(2), F.fractional_max_pool2d_with_indices),
    _record("fractional_max_pool3d", _fractional(3), F.fractional_max_pool3d_with_indices),
    _record("max_unpool1d", _unpooling(1), pattern=WRITTEN),
    _record("max_unpool2d", _unpooling(2), NN.max_unpool2d, pattern=WRITTEN),
    _record("max_unpool3d", _unpooling(3), NN.max_unpool3d, pattern=WRITTEN),
)
