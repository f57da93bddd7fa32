"""The way with maskgrad: letters one behind the other, no padding, no mask."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg

from .model import Speller

__all__ = ["collate", "loss", "right"]

#: the fields "letters" and "sounds" of the samples become jagged (B, S) and (B, T)
collate = mg.interop.collate_jagged


def loss(model: Speller, batch: dict[str, Any]) -> Tensor:
    """Mean cross entropy of the next sound."""
    sounds = batch["sounds"]
    following = model(batch["letters"], sounds[:, :-1])  # without the last of each word
    return F.cross_entropy(following.flatten(0, 1), sounds[:, 1:].flatten(0, 1))


def right(model: Speller, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Which sounds are right, of all; and which words are right as a whole, (B,)."""
    sounds = batch["sounds"]
    hits = model(batch["letters"], sounds[:, :-1]).argmax(-1) == sounds[:, 1:]
    return hits.compressed(), hits.all(1).to_tensor(False)
