"""Attention within each sequence: its queries see its keys and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["multi_head_attention_forward", "scaled_dot_product_attention"]


def scaled_dot_product_attention(fallback: Callable[..., Any]) -> Callable[..., Any]:
    """``F.scaled_dot_product_attention`` of (B, H, T, E)."""
    return fallback


def multi_head_attention_forward(fallback: Callable[..., Any]) -> Callable[..., Any]:
    """``F.multi_head_attention_forward``, by which ``nn.MultiheadAttention`` runs."""
    return fallback
