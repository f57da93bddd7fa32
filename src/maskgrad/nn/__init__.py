"""Drop-in layers for those of ``torch.nn``: tables that are up to date when read, and a choice of pattern."""

from __future__ import annotations

from maskgrad.nn import functional
from maskgrad.nn.convolution import Conv1d, Conv2d, Conv3d, ConvTranspose1d
from maskgrad.nn.embedding import Embedding
from maskgrad.nn.embedding_bag import EmbeddingBag
from maskgrad.nn.gradient_surgery import MaskGradient, ReverseGradient
from maskgrad.nn.linear import Linear

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "Embedding",
    "EmbeddingBag",
    "Linear",
    "MaskGradient",
    "ReverseGradient",
    "functional",
]
