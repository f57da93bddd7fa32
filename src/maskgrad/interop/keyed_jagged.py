"""Features of TorchRec (``KeyedJaggedTensor``, dictionaries of ``JaggedTensor``) as jagged batches, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from maskgrad.interop.sequences import sequences_of
from maskgrad.masked_tensor.sequences import from_offsets
from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["from_keyed_jagged", "to_keyed_jagged"]


def from_keyed_jagged(features: Any) -> dict[str, MaskedTensor]:
    """Convert the features of TorchRec to one jagged batch for each key, sharing the memory.

    Args:
        features: ``torchrec.KeyedJaggedTensor`` (the ids of a batch), or a dictionary of ``torchrec.JaggedTensor`` (the
            rows that an ``EmbeddingCollection`` returns). Weights of ids are not read: ``features[key].weights()``.

    Returns:
        For each key a MaskedTensor ``(B, T, *features)`` of layout ``torch.jagged``; T is the longest
        sequence. Gradient: reaches the values, and so the table.

    Raises:
        TypeError: something else was given.

    Dense equivalent: ``features[key].to_padded_dense()``, which fills the padding with a number.

    Example:
        >>> class Feature:  # what torchrec.JaggedTensor offers
        ...     def values(self): return torch.tensor([7, 8, 9])
        ...     def offsets(self): return torch.tensor([0, 2, 3])
        >>> mg.interop.from_keyed_jagged({"words": Feature()})["words"].tolist()
        [[7, 8], [9, None]]

    Source: https://docs.pytorch.org/torchrec/ (``torchrec.sparse.jagged_tensor``).
    """
    if not callable(getattr(features, "keys", None)):
        raise TypeError(
            "features must be a torchrec.KeyedJaggedTensor or a dictionary of torchrec.JaggedTensor, found "
            f"{type(features).__name__}; for values and offsets use mg.from_offsets(values, offsets)"
        )
    return {key: from_offsets(features[key].values(), features[key].offsets()) for key in features.keys()}  # noqa: SIM118


def to_keyed_jagged(batches: Mapping[str, MaskedTensor]) -> Any:
    """Convert jagged batches of ids to a ``torchrec.KeyedJaggedTensor``, the inverse of :func:`from_keyed_jagged`.

    Args:
        batches: for each key a MaskedTensor ``(B, T)``, jagged or specified in the first positions of each sequence; T
            may differ between keys.

    Returns:
        ``torchrec.KeyedJaggedTensor`` with the keys in order, without weights.

    Raises:
        ModuleNotFoundError: torchrec is not installed (docs/how_do_i/large_tables.md says how).
        TypeError: a batch is not a MaskedTensor, or has a sparse layout.
        ValueError: there is no batch, a sequence has a gap, or sizes or dtypes of the batches differ.

    Example:
        >>> mg.interop.to_keyed_jagged({})
        Traceback (most recent call last):
            ...
        ValueError: batches must be at least one MaskedTensor (B, T), of one batch size and one dtype; found none

    Source: https://docs.pytorch.org/torchrec/ (``torchrec.sparse.jagged_tensor``).
    """
    found = {key: sequences_of(x, "mg.interop.to_keyed_jagged", 1) for key, x in batches.items()}
    sizes = {
        key: (len(pattern.lengths()), values.dtype, values.ndim) for key, (values, pattern) in found.items()
    }
    if len(set(sizes.values())) != 1 or next(iter(sizes.values()))[2] != 1:
        raise ValueError(
            "batches must be at least one MaskedTensor (B, T), of one batch size and one dtype; found "
            + (", ".join(f"{key!r} {tuple(x.shape)} of {x.dtype}" for key, x in batches.items()) or "none")
        )
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    return KeyedJaggedTensor(
        keys=list(found),
        values=torch.cat([values for values, _ in found.values()]),
        lengths=torch.cat([pattern.lengths() for _, pattern in found.values()]),
    )
