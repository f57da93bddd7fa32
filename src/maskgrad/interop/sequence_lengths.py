"""How far each sequence of a batch is specified, and the rows of those sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from maskgrad.interop.columns import check_masked_tensor
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns import JaggedPattern
from maskgrad.patterns.jagged import jagged_pattern

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["check_padded", "lengths", "prefix", "sequences_of"]


def lengths(x: MaskedTensor, dim: int = 1) -> Tensor:
    """The lengths of a padded batch, the inverse of :func:`maskgrad.from_lengths`.

    Args:
        x: MaskedTensor (B, ..., T, ...), each sequence specified in its first positions along ``dim`` and nowhere
            else, for all features alike; with a Boolean mask, or of layout ``torch.jagged``.
        dim: the padded dimension, any but 0.

    Returns:
        int64 tensor (B,) on the device of ``x``, each entry between 0 and T.

    Raises:
        TypeError: ``x`` is no MaskedTensor, or has a sparse layout such as COO.
        ValueError: ``dim`` is 0 or out of range, the features of a position are missing in part, or a sequence has a
            gap; the message names the first. While a graph is compiled the check becomes part of the graph.

    Example:
        >>> x = mg.from_lengths(torch.zeros(3, 4, 2), torch.tensor([4, 0, 2]))
        >>> mg.interop.lengths(x)
        tensor([4, 0, 2])
    """
    function = "mg.interop.lengths"
    if isinstance(x, MaskedTensor) and isinstance(x._pattern, JaggedPattern):
        return sequences_of(x, function, dim)[1].lengths()
    return prefix(x, check_padded(x, dim, function), function).sum(1)


def check_padded(x: object, dim: int, function: str) -> int:
    """Refuse what is no padded batch, and return ``dim`` counted from the front."""
    x = check_masked_tensor(x, function)
    if x.ndim < 2 or not -x.ndim <= dim < x.ndim or dim % x.ndim == 0:
        raise ValueError(
            f"{function}: dim must name a dimension of x other than 0, the batch, found {dim} for {x.ndim} dimensions"
        )
    return dim % int(x.ndim)


def prefix(x: MaskedTensor, dim: int, function: str) -> Tensor:
    """The (B, T) mask that all features share, if it is one of sequences with their padding behind them."""
    mask = x.mask
    for other in range(1, mask.ndim):
        if other != dim and mask.stride(other) == 0 and mask.shape[other]:
            mask = mask.narrow(other, 0, 1)  # an expanded mask says the same at every feature
    by_feature = mask.movedim(dim, 1).flatten(2) if mask.ndim > 2 else mask.unsqueeze(-1)  # (B, T, features)
    if not by_feature.shape[2] and by_feature.numel() != x.shape[0] * x.shape[dim]:
        raise ValueError(
            f"{function}: x of shape {tuple(x.shape)} has no features, so that its mask cannot tell how long the "
            "sequences are; keep the lengths"
        )
    known = by_feature[..., 0]
    partly = (by_feature != by_feature[..., :1]).any(2)
    gap = known[:, 1:] & ~known[:, :-1]
    if torch.compiler.is_compiling():
        torch._assert_async(
            ~(partly.any() | gap.any()), f"{function}: the mask is not one of padded sequences"
        )
        return known
    if partly.any():
        sequence, position = partly.nonzero()[0].tolist()
        raise ValueError(
            f"{function}: position {position} of sequence {sequence} is specified in some features and not in others; "
            "x must hold padded sequences; keep the MaskedTensor if features are missing"
        )
    if gap.any():
        sequence, position = gap.nonzero()[0].tolist()
        raise ValueError(
            f"{function}: sequence {sequence} is specified at position {position + 1} and not at {position}; only "
            "padding at the end of a sequence can be left out; keep the MaskedTensor if there are gaps"
        )
    return known


def sequences_of(x: object, function: str, dim: int | None = 1) -> tuple[Tensor, JaggedPattern]:
    """Rows (n, *features), and where they belong: shared with a jagged tensor, copied from a padded batch.

    ``dim`` is the dimension of the positions in a padded batch; of a jagged tensor it must be the ragged one. None:
    that of a jagged tensor, wherever it is, and 1 of a padded batch. The batch is one dimension, the first of a padded
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
            f"{function}: x must have one batch dimension, found {len(at) - 1} in shape {tuple(x.shape)}; make one of "
            "them, as in mg.from_offsets(x.values(), x.offsets())"
        )
    if dim is not None and dim % x.ndim != at[1]:
        raise ValueError(f"{function}: dim must be {at[1]}, the ragged dimension of x, found {dim}")
    return x._values, x._pattern
