"""The same by hand: pad, say where, and leave padding out of the loss."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .model import Speller
from .words import PADDING, Sample

__all__ = ["collate", "loss", "right"]


def collate(samples: list[Sample]) -> dict[str, Tensor]:
    """Letters and sounds (B, longest), padded with PADDING."""
    return {
        field: pad_sequence([sample[field] for sample in samples], batch_first=True, padding_value=PADDING)
        for field in ("letters", "sounds")
    }


def _following(model: Speller, batch: dict[str, Tensor]) -> Tensor:
    letters, before = batch["letters"], batch["sounds"][:, :-1]
    # The last sound of a shorter word stays in `before`; its score is for padding, which is not counted.
    scores: Tensor = model(letters, before, no_letter=letters == PADDING, no_sound=before == PADDING)
    return scores


def loss(model: Speller, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross entropy of the next sound."""
    following = _following(model, batch)
    return F.cross_entropy(
        following.flatten(0, 1), batch["sounds"][:, 1:].flatten(0, 1), ignore_index=PADDING
    )


def right(model: Speller, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Which sounds are right, of all; and which words are right as a whole, (B,)."""
    after = batch["sounds"][:, 1:]
    hits, real = _following(model, batch).argmax(-1) == after, after != PADDING
    return hits[real], (hits | ~real).all(1)
