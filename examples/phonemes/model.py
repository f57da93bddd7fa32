"""An encoder that reads letters and a decoder that says sounds: modules of ``torch.nn``, and nothing of maskgrad."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Speller"]

LONGEST = 64


class Speller(nn.Module):
    """A Transformer from letters to sounds.

    Without dropout: two layouts draw other random numbers, and could not be compared.

    Args:
        letters: how many there are, with the padding.
        sounds: how many there are, with padding, begin and end.
        width: features of a token.
        layers: of the encoder, and of the decoder.
    """

    def __init__(self, letters: int, sounds: int, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        shape: dict[str, Any] = {"d_model": width, "nhead": 4, "dim_feedforward": 4 * width}
        style: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.letters = nn.Embedding(letters, width)
        self.sounds = nn.Embedding(sounds, width)
        self.places = nn.Embedding(LONGEST, width)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**shape, **style),
            layers,
            nn.LayerNorm(width),
            enable_nested_tensor=False,
        )
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(**shape, **style), layers, nn.LayerNorm(width)
        )
        self.scores = nn.Linear(width, sounds)

    def forward(
        self,
        letters: Tensor,
        sounds: Tensor,
        no_letter: Tensor | None = None,
        no_sound: Tensor | None = None,
    ) -> Tensor:
        """Scores (B, T, sounds) of the sound that follows each of ``sounds``.

        Args:
            letters: (B, S), jagged or padded.
            sounds: (B, T), jagged or padded.
            no_letter: (B, S) True where a padded batch has no letter; a jagged one needs none.
            no_sound: (B, T) likewise.
        """
        later = torch.ones(sounds.shape[1], sounds.shape[1], dtype=torch.bool).triu(1)
        read = self.encoder(self._embedded(self.letters, letters), src_key_padding_mask=no_letter)
        heard = self.decoder(
            self._embedded(self.sounds, sounds), read,
            tgt_mask=later, tgt_is_causal=True,
            tgt_key_padding_mask=no_sound, memory_key_padding_mask=no_letter,
        )  # fmt: skip
        scores: Tensor = self.scores(heard)
        return scores

    def _embedded(self, table: nn.Embedding, numbers: Tensor) -> Tensor:
        embedded: Tensor = table(numbers) + self.places(torch.arange(numbers.shape[1]))
        return embedded
