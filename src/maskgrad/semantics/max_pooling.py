"""Maximum pooling over the specified entries of each window, and its inverse, which writes.

Indices count in the original. The maximum is looked up at its index: a specified -inf is not mistaken for the filler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.semantics.entries import Entries, Operand, filled, mask_of, values_of
from maskgrad.semantics.facts import Operation, record
from maskgrad.semantics.pooling import as_tuple, shared


def maxima(
    input: Entries, rank: int, pooled: Callable[[Tensor], tuple[Tensor, Tensor]], of_mask: Tensor
) -> tuple[Entries, Entries]:
    """The largest specified entry of each window, and its index.

    Args:
        input: (…, *lengths), with ``rank`` lengths.
        rank: the number of spatial dimensions.
        pooled: torch's function, which returns maxima and their indices.
        of_mask: the mask as floats; batch and channels may be of size 1.
    """
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


def _sliding(name: str, rank: int) -> Callable[..., Any]:
    plain, alone = getattr(F, f"{name}_with_indices"), (getattr(F, name), getattr(torch, name))

    def rule(
        function: Callable[..., Any],
        input: Entries,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        options = (kernel_size, None if stride == () else stride, padding, dilation, ceil_mode)
        results = maxima(input, rank, lambda x: plain(x, *options), shared(input.mask, rank).float())
        return results if return_indices or function not in alone else results[0]

    return rule


def _adaptive(name: str, rank: int) -> Callable[..., Any]:
    plain, alone = getattr(F, f"{name}_with_indices"), getattr(F, name)

    def rule(
        function: Callable[..., Any], input: Entries, output_size: Any, return_indices: bool = False
    ) -> Any:
        results = maxima(input, rank, lambda x: plain(x, output_size), shared(input.mask, rank).float())
        return results if return_indices or function is not alone else results[0]

    return rule


def _fractional(name: str, rank: int) -> Callable[..., Any]:
    plain = getattr(F, f"{name}_with_indices")

    def rule(
        function: Callable[..., Any],
        input: Entries,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> Any:
        values = input.values
        samples = _random_samples
        if samples is None:  # drawn once, as torch does, for values and mask
            batch = values.shape[0] if values.ndim == rank + 2 else 1
            size = (batch, values.shape[-rank - 1], rank)
            samples = torch.rand(size, dtype=values.dtype, device=values.device)
        options = (kernel_size, output_size, output_ratio, True, samples)
        results = maxima(input, rank, lambda x: plain(x, *options), input.mask.to(values.dtype))
        return results if return_indices or function is plain else results[0]

    return rule


def _unpooling(name: str, rank: int) -> Callable[..., Any]:
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
CHOSEN = PATTERN, "that of the chosen entry"
WRITTEN = "zeros are specified; written entries keep their mask", "moves back with the entries"
RULES = (
    ("max_pool", _sliding, (1, 2, 3), (F, torch), CHOSEN),
    ("adaptive_max_pool", _adaptive, (1, 2, 3), (F, torch, NN), CHOSEN),
    ("fractional_max_pool", _fractional, (2, 3), (F,), CHOSEN),
    ("max_unpool", _unpooling, (1, 2, 3), (F, NN), WRITTEN),
)


def _record(
    name: str, rule: Callable[..., Any], namespaces: tuple[Any, ...], words: tuple[str, str], padded: str
) -> Operation:
    both = f"{name}_with_indices"
    extra = tuple([getattr(namespace, both) for namespace in (F, torch, NN) if hasattr(namespace, both)])
    return record(
        f"nn.functional.{name}", "pooling", rule, *words, namespaces=namespaces, extra=extra, padded=padded
    )


OPERATIONS = tuple(
    _record(name, rule(name, n), namespaces, words, "mask" if n == 1 and words is CHOSEN else "")
    for stem, rule, ranks, namespaces, words in RULES
    for n in ranks
    if (name := f"{stem}{n}d")
)
