"""Sequences of a batch: lengths, rows, and formats without padding of PyTorch and attention kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from maskgrad.masked_tensor.sequences import specified_positions
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns import JaggedPattern
from maskgrad.patterns.jagged import jagged_pattern

__all__ = ["CuSeqlens", "check_masked_tensor", "lengths", "sequences_of", "to_cu_seqlens"]


def lengths(x: MaskedTensor, dim: int = 1) -> Tensor:
    """Return the lengths of a padded batch, the inverse of :func:`maskgrad.from_lengths`.

    Args:
        x: MaskedTensor (B, ..., T, ...), each sequence specified in its first positions along ``dim`` only, equally
            for all features; with a Boolean mask, or of layout ``torch.jagged``.
        dim: the padded dimension, any but 0.

    Returns:
        int64 tensor (B,) on the device of ``x``, each entry between 0 and T.

    Raises:
        TypeError: ``x`` is not a MaskedTensor, or has a sparse layout such as COO.
        ValueError: ``dim`` is 0 or out of range, the features of a position are missing in part, or a sequence has a
            gap; the message names the first. In compiled graphs the check is part of the graph.

    Example:
        >>> x = mg.from_lengths(torch.zeros(3, 4, 2), torch.tensor([4, 0, 2]))
        >>> mg.interop.lengths(x)
        tensor([4, 0, 2])
    """
    function = "mg.interop.lengths"
    if isinstance(x, MaskedTensor) and isinstance(x._pattern, JaggedPattern):
        return sequences_of(x, function, dim)[1].lengths()
    return prefix(x, check_padded(x, dim, function), function).sum(1)


def check_masked_tensor(x: object, function: str) -> MaskedTensor:
    """Return ``x``; TypeError if it is not a MaskedTensor with a Boolean mask."""
    if not isinstance(x, MaskedTensor):
        raise TypeError(
            f"{function}: x must be a MaskedTensor, found {type(x).__name__}; wrap it in mg.masked(x)"
        )
    if x.layout != torch.strided:
        raise TypeError(
            f"{function}: x must have a strided layout, found {x.layout}; x.to_dense() allocates every entry"
        )
    return x


def check_padded(x: object, dim: int, function: str) -> int:
    """Raise an error if ``x`` is not a padded batch; return ``dim`` counted from the front."""
    x = check_masked_tensor(x, function)
    if x.ndim < 2 or not -x.ndim <= dim < x.ndim or dim % x.ndim == 0:
        raise ValueError(
            f"{function}: dim must be a dimension of x other than 0 (the batch), found {dim} for {x.ndim} dimensions"
        )
    return dim % int(x.ndim)


def prefix(x: MaskedTensor, dim: int, function: str) -> Tensor:
    """Return the (B, T) mask that all features share, if it is that of padded sequences."""
    mask = x.mask
    if not mask.numel() and x.shape[0] and x.shape[dim]:
        raise ValueError(
            f"{function}: x of shape {tuple(x.shape)} has no features, so its mask does not determine the lengths of "
            "sequences; keep the lengths"
        )
    return specified_positions(mask, (0, dim), function)


def sequences_of(x: object, function: str, dim: int | None = 1) -> tuple[Tensor, JaggedPattern]:
    """Return rows (n, *features) and their pattern: shared with a jagged tensor, copied from a padded batch.

    ``dim`` is the dimension of the positions in a padded batch; in a jagged tensor the ragged one. None:
    the ragged one, or 1 in a padded batch. The batch is one dimension, the first of a padded
    batch.
    """
    if not (isinstance(x, MaskedTensor) and isinstance(x._pattern, JaggedPattern)):
        place = check_padded(x, 1 if dim is None else dim, function)
        assert isinstance(x, MaskedTensor)
        known = prefix(x, place, function)
        offsets = torch.nn.functional.pad(known.sum(1).cumsum(0), (1, 0))
        rows = x._values.movedim(place, 1)[known]
        return rows, jagged_pattern(offsets, rows.shape[0], tuple(known.shape), (0, place))
    at = x._pattern.at
    if len(at) != 2:
        raise ValueError(
            f"{function}: x must have one batch dimension, found {len(at) - 1} in shape {tuple(x.shape)}; flatten "
            "them, as in mg.from_offsets(x.values(), x.offsets())"
        )
    if dim is not None and dim % x.ndim != at[1]:
        raise ValueError(f"{function}: dim must be {at[1]}, the ragged dimension of x, found {dim}")
    return x._values, x._pattern


class CuSeqlens(NamedTuple):
    """Sequences as arguments for variable-length attention kernels.

    ``values`` are the concatenated rows ``(n, *features)``. Sequence b is the rows
    ``cu_seqlens[b]:cu_seqlens[b + 1]`` (int32, (B + 1,)), and none is longer than ``max_length``.
    """

    values: Tensor
    cu_seqlens: Tensor
    max_length: int


def to_cu_seqlens(x: MaskedTensor) -> CuSeqlens:
    """Return the rows of all sequences, and the offsets: the inverse of :func:`maskgrad.from_offsets`.

    Args:
        x: MaskedTensor ``(B, T, *features)`` of layout ``torch.jagged``, or with a Boolean mask of padded sequences.

    Returns:
        ``(values, cu_seqlens, max_length)``: rows ``(n, *features)``, int32 (B + 1,), and T, the size of the ragged
        dimension: an upper bound, which avoids waiting for the device. Gradient: passes to the rows of ``x``.

    Zero copy:
        The values of a jagged tensor are shared; ``cu_seqlens`` is new, being int32.

    Raises:
        TypeError: ``x`` is not a MaskedTensor, or has a sparse layout such as COO.
        ValueError: its mask is not that of padded sequences, it has several batch dimensions, or more rows than int32
            can index.

    Dense equivalent: ``data[mask]`` of a padded batch.

    Example:
        >>> x = mg.from_sequences([torch.tensor([1., 2.]), torch.tensor([6.])], layout=torch.jagged)
        >>> values, cu_seqlens, max_length = mg.interop.to_cu_seqlens(x)
        >>> values, cu_seqlens, max_length
        (tensor([1., 2., 6.]), tensor([0, 2, 3], dtype=torch.int32), 2)

    Source: https://docs.pytorch.org/docs/stable/nn.attention.html (``varlen``).
    """
    function = "mg.interop.to_cu_seqlens"
    values, pattern = sequences_of(x, function, None)
    if values.shape[0] >= 2**31:
        raise ValueError(
            f"{function}: int32 cannot index {values.shape[0]} rows; split the batch, or use x.offsets() (int64)"
        )
    return CuSeqlens(values, pattern.offsets.to(torch.int32), pattern.longest)
