"""Mixed precision: a gradient scaler for sparse and masked gradients."""

from __future__ import annotations

from maskgrad.amp.grad_scaler import GradScaler

__all__ = ["GradScaler"]
