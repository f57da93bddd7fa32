"""Optimizers with ``torch.optim`` signatures that take dense, sparse and masked gradients."""

from __future__ import annotations

from maskgrad.optim import functional
from maskgrad.optim.adagrad import Adagrad
from maskgrad.optim.adam import Adam, AdamW
from maskgrad.optim.attached import attach_gradient, attached_gradient
from maskgrad.optim.sgd import SGD

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "attach_gradient", "attached_gradient", "functional"]
