"""Losses of tokens to one number, under the names of reinforcement learning: over tokens, or over sequences."""

from __future__ import annotations

import warnings
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from maskgrad.documents.numbering import Ways, numbered
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.patterns import JaggedPattern

__all__ = ["OLD_NAMES", "How", "SumAndCount", "aggregate", "checked_how", "sum_and_count"]

How = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]

#: the names of the first two until version 0.4
OLD_NAMES: dict[str, How] = {"entry": "token-mean", "sequence": "seq-mean-token-mean"}


class SumAndCount(NamedTuple):
    """Sums over tokens or sequences, and their number: of several batches, both add up."""

    total: Tensor
    number: Tensor


def aggregate(
    losses: Tensor | MaskedTensor,
    how: How,
    documents: Tensor | MaskedTensor | None = None,
    mask: Tensor | MaskedTensor | None = None,
    constant: float | None = None,
) -> Tensor:
    r"""Return one loss from those of tokens: their mean, or the mean over sequences of means or sums.

    .. math:: \frac{\sum_d s_d}{\sum_d n_d}, \quad \frac1D \sum_d \frac{s_d}{n_d}, \quad \frac1D \sum_d s_d, \quad
        \frac1{D c} \sum_d s_d

    for ``how="token-mean"``, ``"seq-mean-token-mean"``, ``"seq-mean-token-sum"`` and ``"seq-mean-token-sum-norm"``,
    with sum :math:`s_d` and number :math:`n_d` of the losses of each of D sequences, and c = ``constant``. Sequences
    without a token do not count.

    Args:
        losses: (B, T, \*features) of a floating-point dtype: a MaskedTensor of any layout, or a plain tensor with
            ``mask`` or ``documents``. Without ``documents``, each row is a sequence.
        how: one of the names above.
        documents: integers (B, T), the document of each token, as ``segment_ids`` of :func:`unpack_documents`;
            negative: of none.
        mask: Boolean, True = counts; with as many dimensions as ``losses``.
        constant: c, such as the largest number of tokens; for ``"seq-mean-token-sum-norm"`` only.

    Returns:
        Plain 0-dim tensor of the dtype of ``losses``, summed in float32 at least; NaN without any token.
        Gradient: exactly 0 where nothing counts, and everywhere without any token; differentiable twice.

    Raises:
        TypeError: ``losses`` are not of a floating-point dtype.
        ValueError: an unknown name; plain losses of which it is unknown what counts; ``constant`` is missing, not
            positive, or given for another name; documents as refused by :func:`unpack_documents`.

    Dense equivalent: ``(losses * mask).sum() / mask.sum()`` for ``"token-mean"``, wrong where padding is NaN.

    Example:
        >>> losses, ids = torch.tensor([[1., 1., 1., 5.]]), torch.tensor([[0, 0, 0, 1]])
        >>> mg.aggregate(losses, "token-mean", ids), mg.aggregate(losses, "seq-mean-token-mean", ids)
        (tensor(2.), tensor(3.))

    Source: Yu et al., "DAPO", 2025; Liu et al., "Understanding R1-Zero-like training", 2025. The names are verl's.
    """
    how = checked_how(how, constant, "how", "mg.aggregate(losses, {})")
    if mask is None and documents is None and not isinstance(losses, MaskedTensor):
        raise ValueError(
            "mg.aggregate: which entries of plain losses count is unknown, as ignore_index leaves zeros in them; write "
            f"mg.aggregate(losses, {how!r}, mask=labels != -100)"
        )
    total, count = sum_and_count(losses if mask is None else masked(losses, mask), how, documents, constant)
    # divided by at least 1: the gradient of nothing is 0
    mean = torch.where(count > 0, total / count.clamp(min=1), torch.nan)
    return mean.to(losses.dtype)


def checked_how(how: Any, constant: Any, name: str, line: str) -> How:
    """Return the name of an aggregation, the new one for an old one; ValueError if it or ``constant`` is wrong."""
    names = get_args(How)
    where = f"{line.partition('(')[0]}: "
    if how in OLD_NAMES:
        words = f"{where}{name}={how!r} is deprecated; write {name}={OLD_NAMES[how]!r}"
        warnings.warn(words, DeprecationWarning, stacklevel=3)
        how = OLD_NAMES[how]
    if how not in names:
        listed = ", ".join(map(repr, names))
        remedy = line.format(f"{name}={names[0]!r}")
        raise ValueError(f"{where}{name} must be one of {listed}, found {how!r}; write {remedy}")
    is_normed = how == names[3]
    if is_normed != (constant is not None):
        found = "it is missing" if is_normed else f"not for {how!r}"
        remedy = line.format(f"{name}={names[3]!r}, constant=1024" if is_normed else f"{name}={how!r}")
        raise ValueError(f"{where}constant belongs to {names[3]!r}, {found}; write {remedy}")
    if is_normed and not (isinstance(constant, (int, float)) and 0 < constant < float("inf")):
        remedy = line.format(f"{name}={how!r}, constant=float(constant)")
        raise ValueError(f"{where}constant must be a positive number, found {constant!r}; write {remedy}")
    return how  # type: ignore[no-any-return]


def sum_and_count(
    losses: Tensor | MaskedTensor, how: How, documents: Any = None, constant: float | None = None
) -> SumAndCount:
    """Return what :func:`aggregate` divides, in float32 at least; plain losses count wherever a document is."""
    if not losses.dtype.is_floating_point or not losses.ndim:
        raise TypeError(
            f"mg.aggregate: losses must be floating-point numbers (B, T), found {losses.dtype} of shape "
            f"{tuple(losses.shape)}; write mg.aggregate(losses.float(), {how!r}, mask=mask)"
        )
    if how == "token-mean" and documents is None and isinstance(losses, MaskedTensor):
        wide = torch.promote_types(losses.dtype, torch.float32)
        return SumAndCount(losses.sum(dtype=wide), losses.num_specified())
    sums, counts = _of_sequences(losses, documents, how)
    if how == "token-mean":
        return SumAndCount(sums.sum(), counts.sum())
    if how == "seq-mean-token-mean":
        sums = sums / counts.clamp(min=1)
    elif constant is not None:
        sums = sums / constant
    return SumAndCount(sums.sum(), (counts > 0).sum())


def _of_sequences(losses: Tensor | MaskedTensor, documents: Any, how: str) -> tuple[Tensor, Tensor]:
    """Sum and number of the entries of each sequence, of which some may be empty."""
    wide = torch.promote_types(losses.dtype, torch.float32)
    if documents is None:
        dims, ones = tuple(range(1, losses.ndim)), torch.ones_like(losses, dtype=torch.int64)
        pair: Any = (losses.sum(dims, dtype=wide), ones.sum(dims)) if dims else (losses.to(wide), ones)
        return pair[0].filled(0), pair[1].filled(0)
    if isinstance(losses, MaskedTensor) and isinstance(losses._pattern, JaggedPattern):
        raise ValueError(
            "mg.aggregate: jagged losses have a sequence for each document already; write "
            f"mg.aggregate(losses, {how!r})"
        )
    frame, line = losses.shape[:2], f"mg.aggregate(losses, {how!r}, {{}})"
    try:
        number = numbered(Ways(documents), frame, losses.device, line)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("segment_ids", "documents")) from None
    inside = (number >= 0).reshape(*frame, *(1,) * (losses.ndim - 2)).expand(losses.shape)
    kept = masked(losses, inside)
    entries, counted = kept.filled(0).to(wide), kept.mask.long()
    if losses.ndim > 2:
        entries, counted = entries.flatten(2).sum(2), counted.flatten(2).sum(2)
    # at most as many documents as tokens, so no size is read
    index, zeros = number.clamp(min=0).flatten(), entries.new_zeros(number.numel())
    counts = zeros.long().index_add(0, index, counted.flatten())
    return zeros.index_add(0, index, entries.flatten()), counts
