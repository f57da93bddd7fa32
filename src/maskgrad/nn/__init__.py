"""Layers that know what the rest of maskgrad does to their parameters; drop-in for those of ``torch.nn``."""

from __future__ import annotations

from maskgrad.nn.embedding import Embedding
from maskgrad.nn.embedding_bag import EmbeddingBag
from maskgrad.nn.gradient_surgery import MaskGradient, ReverseGradient

__all__ = ["Embedding", "EmbeddingBag", "MaskGradient", "ReverseGradient"]
