"""Sequences of different lengths: constructors, conversions and properties of the layout ``torch.jagged``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from maskgrad.masked_tensor.other_packages import notice_packages
from maskgrad.masked_tensor.storage import to_dense
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries
from maskgrad.mode import TRACED, mode
from maskgrad.other_data import conversion_of, has_own_mask
from maskgrad.patterns.checks import check_offsets
from maskgrad.patterns.jagged import JaggedPattern, jagged_pattern
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.stored.entries import SIGNED

__all__ = [
    "METHODS", "check_layout", "from_offsets", "from_sequences", "jagged_of_lengths", "specified_positions",
]  # fmt: skip

LAYOUTS = (torch.strided, torch.jagged)


def check_layout(layout: torch.layout) -> None:
    """Raise unless sequences can be stored in this layout."""
    if layout not in LAYOUTS:
        raise ValueError(
            f"layout must be torch.strided or torch.jagged, found {layout}; append .to_sparse(layout={layout})"
        )


def _ndim(argument: object) -> int:
    return argument.ndim if isinstance(argument, Tensor) else -1


def _found(argument: object) -> str:
    return f"a {argument.ndim}-d tensor" if isinstance(argument, Tensor) else type(argument).__name__


def _as_sequences(part: object) -> str:
    """Return the argument to write instead of a list with ``part``, which is no sequence of entries."""
    if part is None:
        return "[s for s in sequences if s is not None]"
    if isinstance(part, MaskedTensor):
        return "[s.compressed() for s in sequences]"
    if hasattr(part, "mask"):  # of numpy.ma
        return "[mg.from_numpy(s).compressed() for s in sequences]"
    if not hasattr(part, "__len__") or _ndim(part) == 0:  # numbers: one sequence, or lengths
        return "[torch.as_tensor(sequences)]) for one sequence, or mg.from_lengths(data, torch.as_tensor(sequences)"
    return "[torch.as_tensor(s) for s in sequences]"


def from_sequences(sequences: Iterable[Tensor], *, layout: torch.layout = torch.strided) -> MaskedTensor:
    """Create a batch of sequences of different lengths.

    Args:
        sequences: tensors ``(length, *features)``, of one dtype and device; lengths may be 0.
        layout: ``torch.strided`` pads them, with a Boolean mask; ``torch.jagged`` concatenates them.

    Returns:
        MaskedTensor ``(B, T, *features)``, T the longest length. Gradient: reaches each sequence.

    Raises:
        TypeError: a sequence is not a tensor, or their dtypes differ.
        ValueError: there are no sequences, or their features or devices differ.

    Dense equivalent: ``torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)``.

    Example:
        >>> import torch, maskgrad as mg
        >>> x = mg.from_sequences([torch.tensor([1., 2.]), torch.tensor([6.])], layout=torch.jagged)
        >>> x.mean(1)
        masked([1.5000, 6.0000])

    Source: https://docs.pytorch.org/docs/stable/nested.html (the layout).
    """
    notice_packages()
    check_layout(layout)
    if not isinstance(sequences, Iterable) or isinstance(sequences, (str, Mapping)) or _ndim(sequences) == 1:
        remedy = "[sequence]" if _ndim(sequences) == 1 else "[torch.tensor([1., 2.]), torch.tensor([3.])]"
        raise TypeError(
            f"sequences must be a list of tensors (length, *features), found {_found(sequences)}; write "
            f"mg.from_sequences({remedy})"
        )
    parts = list(sequences)
    if not parts:
        raise ValueError(
            "sequences must not be empty, as features and dtype would be unknown; use mg.from_offsets"
        )
    for i, part in enumerate(parts):
        if not isinstance(part, Tensor) or part.ndim < 1:
            raise TypeError(
                f"sequences must be tensors (length, *features), found {_found(part)} at {i}; write "
                f"mg.from_sequences({_as_sequences(part)})"
            )
        if part.dtype != parts[0].dtype:
            raise TypeError(
                f"sequences must have one dtype, found {parts[0].dtype} and, at {i}, {part.dtype}; use .to(dtype)"
            )
        if part.shape[1:] != parts[0].shape[1:] or part.device != parts[0].device:
            raise ValueError(
                f"sequences must have the same features and device, found {tuple(parts[0].shape[1:])} on "
                f"{parts[0].device} and, at {i}, {tuple(part.shape[1:])} on {part.device}"
            )
    lengths = [part.shape[0] for part in parts]
    offsets = torch.tensor([0, *lengths], device=parts[0].device).cumsum(0)
    pattern = jagged_pattern(offsets, sum(lengths), (len(parts), max(lengths)))
    batch = MaskedTensor(torch.cat(parts), pattern)
    return batch if layout == torch.jagged else to_dense(batch)


def from_offsets(values: Tensor | MaskedTensor, offsets: Tensor, longest: int | None = None) -> MaskedTensor:
    """Create a jagged batch from packed sequences (``cu_seqlens`` of variable-length attention), sharing the memory.

    Args:
        values: concatenated rows ``(n, *features)`` of all sequences. A MaskedTensor keeps its own mask, too.
        offsets: integers (B + 1,), ascending from 0 to n: sequence b is the rows ``offsets[b]:offsets[b + 1]``.
        longest: T, the size of the ragged dimension; None: the longest length, which is read from the device.

    Returns:
        MaskedTensor ``(B, T, *features)`` of layout ``torch.jagged``; with a Boolean mask for masked rows, whose
        holes that layout cannot store. Gradient: reaches ``values``.

    Raises:
        TypeError: ``values`` is not a strided tensor, or ``offsets`` are not integers.
        ValueError: ``offsets`` decrease, do not begin with 0 or end with n, are on another device, or a sequence is
            longer than ``longest``.

    Example:
        >>> import torch, maskgrad as mg
        >>> mg.from_offsets(torch.tensor([1., 2., 6.]), torch.tensor([0, 2, 3])).sum(1)
        masked([3., 6.])

    Source: https://docs.pytorch.org/docs/stable/nn.attention.html (``varlen``).
    """
    notice_packages()
    is_tensor = isinstance(values, MaskedTensor) or (isinstance(values, Tensor) and not has_own_mask(values))
    if not is_tensor or values.layout != torch.strided or values.ndim < 1:
        raise TypeError(
            f"values must be a strided tensor (n, *features), one row for each position, found {_found(values)}; use "
            f"{conversion_of(values, 'values')}"
        )
    if not isinstance(offsets, Tensor):
        raise TypeError(
            f"offsets must be a torch.Tensor, found {type(offsets).__name__}; use torch.tensor(offsets)"
        )
    if offsets.device != values.device:
        raise ValueError(
            f"offsets must be on the device of values, {values.device}, found {offsets.device}; "
            f"use offsets.to({str(values.device)!r})"
        )
    check_offsets(offsets, values.shape[0])
    offsets = offsets.to(torch.int64)
    most = int(offsets.diff().max()) if offsets.shape[0] > 1 else 0
    if longest is not None and longest < most:
        raise ValueError(
            f"longest must be at least {most}, the length of the longest sequence, found {longest}"
        )
    size = most if longest is None else longest
    pattern = jagged_pattern(offsets, values.shape[0], (offsets.shape[0] - 1, size))
    if not isinstance(values, MaskedTensor):
        return MaskedTensor(values, pattern)
    padded, mask = (MaskedTensor(part, pattern)._dense()[0] for part in values._dense())
    return of_entries(padded, mask)


def jagged_of_lengths(data: Tensor, lengths: Tensor, dim: int) -> MaskedTensor:
    """Return the rows of a padded batch (checked by :func:`maskgrad.from_lengths`); reads their number."""
    offsets = torch.nn.functional.pad(lengths.to(torch.int64).cumsum(0), (1, 0))
    pattern = jagged_pattern(offsets, int(offsets[-1]), (data.shape[0], data.shape[dim]), (0, dim))
    return _rows(data, pattern)


def _rows(data: Tensor, pattern: JaggedPattern) -> MaskedTensor:
    depth = len(pattern.at)
    rows = data.movedim(pattern.at, tuple(range(depth))).flatten(0, depth - 1)
    # index_select does not support these dtypes, and is faster for the others
    chosen = rows[pattern.index] if rows.dtype in SIGNED else rows.index_select(0, pattern.index)
    return MaskedTensor(chosen, pattern)


def to_jagged(self: MaskedTensor, dim: int = 1) -> MaskedTensor:
    """Concatenate the sequences, so that later operations do not compute padding.

    Args:
        self: a MaskedTensor of any layout, whose sequences are specified in their first positions.
        dim: the ragged dimension. Dimension 0, and those before ``dim`` along which the mask varies, are the batch; all
            others are features, with a common mask.

    Returns:
        MaskedTensor of layout ``torch.jagged`` and of the same shape. Gradient: passes to the same entries.

    Raises:
        ValueError: a sequence has a gap, or a position is specified in some of its features only.

    Example:
        >>> import torch, maskgrad as mg
        >>> mg.from_lengths(torch.arange(6.).reshape(2, 3), torch.tensor([3, 1])).to_jagged().values()
        tensor([0., 1., 2., 3.])
    """
    own = self._pattern
    if isinstance(own, JaggedPattern) and not own.is_flat and as_dim(dim, len(self.shape)) == own.at[-1]:
        return self
    values, mask = self._dense()
    rank = values.ndim
    if rank < 2:
        raise ValueError(
            f"to_jagged() needs a batch and a ragged dimension, found shape {tuple(values.shape)}"
        )
    dim = as_dim(dim, rank)
    if dim == 0:
        raise ValueError(
            "dim must be a dimension other than 0 (the batch); use x.transpose(0, 1).to_jagged()"
        )
    batch = [d for d in range(dim) if d == 0 or mask.stride(d) != 0]
    at = (*batch, dim)
    lengths = specified_positions(mask, at, "to_jagged").sum(-1).reshape(-1)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    pattern = jagged_pattern(offsets, int(offsets[-1]), tuple(values.shape[d] for d in at), at)
    return _rows(values, pattern)


def specified_positions(mask: Tensor, at: Sequence[int], function: str) -> Tensor:
    """Return the (*batch, T) mask of padded sequences, whose dimensions are ``at``; all others are features.

    Raises:
        ValueError: a position is specified in some of its features, or a sequence has a gap; the message names the
            first. In compiled graphs the check is part of the graph.
    """
    depth = len(at)
    mask = mask.movedim(tuple(at), tuple(range(depth)))
    for dim in range(depth, mask.ndim):
        if mask.stride(dim) == 0 and mask.shape[dim]:
            mask = mask.narrow(dim, 0, 1)  # an expanded mask is the same for all features
    by_feature = mask.flatten(depth) if mask.ndim > depth else mask.unsqueeze(-1)
    known = by_feature.any(-1)
    partly = (by_feature != known.unsqueeze(-1)).any(-1)
    gap = ~known[..., :-1] & known[..., 1:]
    if mode() in TRACED:
        torch._assert_async(
            ~(partly.any() | gap.any()), f"{function}: the mask is not that of padded sequences"
        )
        return known
    for wrong, words in (
        (partly, "specified in some features and not in others"),
        (gap, "unspecified and the next one is not"),
    ):
        if bool(wrong.any()):
            *batch, position = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"{function}: position {position} of sequence {batch[0] if len(batch) == 1 else tuple(batch)} is "
                f"{words}; x must contain sequences with padding at their ends only; use a Boolean mask"
            )
    return known


def _pattern(x: MaskedTensor, name: str) -> JaggedPattern:
    if not isinstance(x._pattern, JaggedPattern):
        raise RuntimeError(
            f"x.{name}() needs layout torch.jagged, found {x.layout}; use x.to_jagged().{name}()"
        )
    return x._pattern


def offsets(self: MaskedTensor) -> Tensor:
    """Return the offsets of the sequences of a jagged tensor: int64, (B + 1,); must not be modified."""
    return _pattern(self, "offsets").offsets


def lengths(self: MaskedTensor) -> Tensor:
    """Return the length of each sequence of a jagged tensor: int64, ``(*batch,)``."""
    pattern = _pattern(self, "lengths")
    return pattern.lengths().reshape(pattern.frame.shape[:-1])


METHODS = (to_jagged, offsets, lengths)
