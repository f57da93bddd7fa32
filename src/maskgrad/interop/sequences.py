"""Sequences of a batch: lengths, rows, and formats without padding of PyTorch and attention kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from maskgrad.masked_tensor.sequences import check_layout, specified_positions
from maskgrad.masked_tensor.storage import to_dense
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns import JaggedPattern
from maskgrad.patterns.jagged import jagged_pattern

__all__ = [
    "CuSeqlens",
    "check_masked_tensor",
    "from_packed",
    "lengths",
    "sequences_of",
    "to_cu_seqlens",
    "to_packed",
]


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


def from_packed(packed: PackedSequence, layout: torch.layout = torch.jagged) -> MaskedTensor:
    """Convert a packed sequence of PyTorch to a batch with its sequences in the original order.

    Args:
        packed: what ``torch.nn.utils.rnn.pack_padded_sequence`` or ``pack_sequence`` makes; data ``(n, *features)``.
        layout: ``torch.jagged`` concatenates the sequences; ``torch.strided`` pads them and has a
            Boolean mask.

    Returns:
        MaskedTensor ``(B, T, *features)``, T the longest length. Gradient: reaches ``packed.data``.

    Zero copy:
        None; packed sequences are stored step by step, not sequence by sequence.

    Raises:
        TypeError: ``packed`` is not a PackedSequence.
        ValueError: its parts contradict each other, or ``layout`` is unknown.

    Dense equivalent: ``torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)``.

    Example:
        >>> packed = torch.nn.utils.rnn.pack_sequence([torch.tensor([1., 2.]), torch.tensor([6.])])
        >>> mg.interop.from_packed(packed)
        masked([[1., 2.],
                [6., --]], layout=torch.jagged)

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.PackedSequence.html
    """
    function = "mg.interop.from_packed"
    check_layout(layout)
    if not isinstance(packed, PackedSequence):
        raise TypeError(
            f"{function}: packed must be a torch.nn.utils.rnn.PackedSequence, found {type(packed).__name__}; build one "
            "with pack_sequence(list_of_tensors, enforce_sorted=False), or use mg.from_sequences(list_of_tensors)"
        )
    data, sizes = packed.data, packed.batch_sizes
    number, steps = data.shape[0], len(sizes)
    if not steps or int(sizes.sum()) != number or int(sizes[-1]) < 1 or bool((sizes.diff() > 0).any()):
        raise ValueError(
            f"{function}: batch_sizes of packed must descend from the number of sequences, be positive and sum to the "
            f"{number} rows of data, found {sizes.tolist()}; use pack_sequence"
        )
    batch = int(sizes[0])
    order = packed.unsorted_indices
    rank = torch.arange(batch) if order is None else order.cpu()
    if rank.shape != (batch,) or not rank.sort()[0].equal(torch.arange(batch)):
        raise ValueError(
            f"{function}: unsorted_indices of packed must contain each of {batch} sequences once, found {rank.tolist()}"
        )
    by_length = (sizes.unsqueeze(1) > torch.arange(batch)).sum(0)  # the longest first
    offsets = torch.nn.functional.pad(by_length[rank].cumsum(0), (1, 0)).to(data.device)
    pattern = jagged_pattern(offsets, number, (batch, steps))
    starts = (sizes.cumsum(0) - sizes).to(data.device)
    places = starts[pattern.positions()] + rank.to(data.device)[pattern.sequences()]
    x = MaskedTensor(data.index_select(0, places), pattern)
    return x if layout == torch.jagged else to_dense(x)


def to_packed(x: MaskedTensor) -> PackedSequence:
    """Convert a batch of sequences to a packed sequence of PyTorch, for code that needs one.

    ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` need none: they accept the MaskedTensor directly.

    Args:
        x: MaskedTensor ``(B, T, *features)``, jagged, or with a Boolean mask of padded sequences; of a
            jagged tensor the ragged dimension may be the first. Every sequence needs a step.

    Returns:
        PackedSequence with ``sorted_indices``. Gradient: reaches the specified entries of ``x``, exactly 0 elsewhere.

    Zero copy:
        None; packed sequences are stored step by step, not sequence by sequence.

    Raises:
        TypeError: ``x`` is not a MaskedTensor, or has a sparse layout such as COO.
        ValueError: a sequence is empty, which PyTorch cannot pack; the mask is not that of padded sequences; or ``x``
            has several batch dimensions.

    Dense equivalent: ``torch.nn.utils.rnn.pack_padded_sequence(data, lengths, True, enforce_sorted=False)``.

    Example:
        >>> x = mg.from_lengths(torch.arange(6.).reshape(2, 3), torch.tensor([1, 3]))
        >>> packed = mg.interop.to_packed(x)
        >>> packed.data, packed.batch_sizes
        (tensor([3., 0., 4., 5.]), tensor([2, 1, 1]))

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.PackedSequence.html
    """
    function = "mg.interop.to_packed"
    values, pattern = sequences_of(x, function, None)
    lengths = pattern.lengths()
    if not len(lengths) or int(lengths.min()) < 1:
        found = "no sequences" if not len(lengths) else f"sequence {int(lengths.argmin())} empty"
        raise ValueError(
            f"{function}: PyTorch packs sequences of length 1 or more, found {found}; remove them, as in "
            "x[mg.interop.lengths(x) > 0], or pass x itself to the recurrent layer"
        )
    order = lengths.argsort(descending=True, stable=True)
    rank = torch.empty_like(order).index_copy(0, order, torch.arange(len(order), device=order.device))
    sizes = torch.bincount(pattern.positions().cpu())
    starts = (sizes.cumsum(0) - sizes).to(order.device)
    places = starts[pattern.positions()] + rank[pattern.sequences()]
    data = torch.empty_like(values, requires_grad=False).index_copy(0, places, values)
    return PackedSequence(data, sizes, order, rank)
