"""An encoder of Hugging Face, the mean over the real letters of each word, and a linear layer."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import nn

import maskgrad as mg
from maskgrad.optional_packages import require

from .words import CLASSES, IGNORED, LETTERS

__all__ = ["StressReader"]


class StressReader(nn.Module):
    """Says which syllable of a word is stressed.

    The encoder comes from a configuration, with random parameters, so that nothing is downloaded;
    ``AutoModel.from_pretrained(...)`` stands in the same place. Without dropout, so that the ways can be compared.
    """

    def __init__(self, width: int = 64, layers: int = 2, reduction: str = "none") -> None:
        super().__init__()
        self.reduction = reduction
        transformers = require("transformers", "the fine-tuning example", "ecosystem")
        self.encoder = transformers.BertModel(
            transformers.BertConfig(
                vocab_size=LETTERS, hidden_size=width, intermediate_size=2 * width,
                num_hidden_layers=layers, num_attention_heads=4,
                hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            ),
            add_pooling_layer=False,
        )  # fmt: skip
        self.head = nn.Linear(width, CLASSES)

    def forward(self, input_ids: Any, labels: Any = None) -> dict[str, Any]:
        """Scores (B, CLASSES), and the losses (B,) of the words that have a label, or their mean.

        Args:
            input_ids: (B, T) jagged.
            labels: (B,) IGNORED where there is none.
        """
        hidden = self.encoder(input_ids=input_ids).last_hidden_state
        scores = self.head(hidden.mean(1))  # over the letters of each word; there is no padding
        if labels is None:
            return {"logits": scores}
        known: Any = mg.masked(labels, labels != IGNORED)
        return {"loss": F.cross_entropy(scores, known, reduction=self.reduction), "logits": scores}
