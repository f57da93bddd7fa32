"""Layers that know what the rest of maskgrad does to their parameters; drop-in for those of ``torch.nn``."""

from __future__ import annotations

from maskgrad.nn import functional
from maskgrad.nn.convolution import Conv1d, Conv2d, Conv3d
from maskgrad.nn.embedding import Embedding
from maskgrad.nn.embedding_bag import EmbeddingBag
from maskgrad.nn.gradient_surgery import MaskGradient, ReverseGradient

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Embedding",
    "EmbeddingBag",
    "MaskGradient",
    "ReverseGradient",
    "functional",
]
