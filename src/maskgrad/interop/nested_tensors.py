"""PyTorch's nested tensors of jagged layout: sequences of different lengths, one after the other in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.interop.sequence_lengths import check_padded, prefix
from maskgrad.masked_tensor.creation import from_lengths

if TYPE_CHECKING:
    from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["from_nested", "to_nested"]


def from_nested(jagged: Tensor, size: int | None = None) -> MaskedTensor:
    """A nested tensor of jagged layout as a padded batch, specified where a sequence has entries.

    Args:
        jagged: nested tensor (B, ..., T*, ...) of ``torch.jagged`` layout; T* is the dimension whose size varies.
        size: size of that dimension in the result, at least the longest sequence. None: as long as that one; finding
            out waits for the device.

    Returns:
        MaskedTensor (B, ..., size, ...), 0 in the padding, its mask an expanded view.
        Gradient: reaches ``jagged``, and what it was made of; the padding receives none. PyTorch's jagged tensors have
        no second derivative, and raise ``NotImplementedError``.

    Zero copy:
        None; the padding has to be put between the sequences.

    Raises:
        TypeError: ``jagged`` is no nested tensor of jagged layout.
        ValueError: ``size`` is smaller than the longest sequence.

    Example:
        >>> jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)
        >>> mg.from_nested(jagged)
        masked([[1., 1.],
                [1., --]])
    """
    if not isinstance(jagged, Tensor) or not jagged.is_nested or jagged.layout != torch.jagged:
        found = type(jagged).__name__
        if isinstance(jagged, Tensor):
            found = f"a {'nested' if jagged.is_nested else 'plain'} tensor of layout {jagged.layout}"
        raise TypeError(
            f"mg.from_nested: jagged must be a nested tensor of layout torch.jagged, found {found}; build one with "
            "torch.nested.as_nested_tensor(list_of_tensors, layout=torch.jagged)"
        )
    dim = next(i for i, extent in enumerate(jagged.shape) if isinstance(extent, torch.SymInt))
    values = jagged.values().movedim(dim - 1, 0)  # (sum of lengths, *features)
    parts: Any = jagged  # Tensor's annotations know nothing of nested tensors
    offsets, holes = parts.offsets().long(), parts.lengths()
    lengths = offsets.diff() if holes is None else holes.long()
    batch = len(lengths)
    longest = int(lengths.max()) if batch and size is None else 0
    padded_size = longest if size is None else size
    if size is not None and batch and int(lengths.max()) > size:
        raise ValueError(
            f"mg.from_nested: size must be at least {int(lengths.max())}, the longest sequence, found {size}"
        )
    sequence = torch.repeat_interleave(lengths)  # (entries,) to which sequence an entry belongs, and where
    position = torch.arange(len(sequence), device=values.device) - (lengths.cumsum(0) - lengths)[sequence]
    if holes is not None:  # torch.nested.narrow leaves entries between the sequences
        values = values[offsets[sequence] + position]
    padded = values.new_zeros(batch, padded_size, *values.shape[1:]).index_put((sequence, position), values)
    return from_lengths(padded.movedim(1, dim), lengths, dim)


def to_nested(x: MaskedTensor, dim: int = 1) -> Tensor:
    """A padded batch as a nested tensor of jagged layout, without its padding.

    Args:
        x: MaskedTensor (B, ..., T, ...), each sequence specified in its first positions along ``dim``.
        dim: the padded dimension, any but 0.

    Returns:
        Nested tensor of ``torch.jagged`` layout, ragged at ``dim``. Gradient: reaches the specified entries of ``x``,
        exactly 0 elsewhere; once, as for :func:`from_nested`.

    Zero copy:
        None; the padding has to be left out.

    Raises:
        TypeError: ``x`` is no MaskedTensor, or has a sparse layout.
        ValueError: as for :func:`lengths`, if the mask is not one of padded sequences.

    Example:
        >>> x = mg.from_lengths(torch.arange(6.).reshape(2, 3), torch.tensor([3, 1]))
        >>> [sequence.tolist() for sequence in mg.interop.to_nested(x).unbind()]
        [[0.0, 1.0, 2.0], [3.0]]
    """
    function = "mg.interop.to_nested"
    dim = check_padded(x, dim, function)
    known = prefix(x, dim, function)  # (B, T)
    values = x._values.movedim(dim, 1)[known]
    offsets = torch.nn.functional.pad(known.sum(1).cumsum(0), (1, 0))
    return torch.nested.nested_tensor_from_jagged(values.movedim(0, dim - 1), offsets, jagged_dim=dim)
