"""Drop-in replacements of layers of ``torch.nn``: tables with lazy updates, and a choice of pattern."""

from __future__ import annotations

from maskgrad.instead import missing_attribute
from maskgrad.nn import functional
from maskgrad.nn.convolution import Conv1d, Conv2d, Conv3d, ConvTranspose1d
from maskgrad.nn.embedding import Embedding
from maskgrad.nn.embedding_bag import EmbeddingBag
from maskgrad.nn.gradient_surgery import ReverseGradient

__all__ = [
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "Embedding", "EmbeddingBag", "ReverseGradient",
    "functional",
]  # fmt: skip


def __getattr__(name: str) -> object:
    raise missing_attribute(__name__, name)
