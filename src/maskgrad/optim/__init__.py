"""Optimizers with ``torch.optim`` signatures that take dense, sparse and masked gradients."""

from __future__ import annotations

from maskgrad.gradients.train_only import trained_entries
from maskgrad.instead import missing_attribute
from maskgrad.optim import functional
from maskgrad.optim.adadelta import Adadelta
from maskgrad.optim.adagrad import Adagrad
from maskgrad.optim.adam import Adam, AdamW
from maskgrad.optim.adamax import Adamax
from maskgrad.optim.asgd import ASGD
from maskgrad.optim.lazy.rows import flush
from maskgrad.optim.lion import Lion
from maskgrad.optim.nadam import NAdam
from maskgrad.optim.parameters import attached_gradient
from maskgrad.optim.radam import RAdam
from maskgrad.optim.rmsprop import RMSprop
from maskgrad.optim.rprop import Rprop
from maskgrad.optim.sgd import SGD

__all__ = [
    "ASGD", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "NAdam", "RAdam", "RMSprop",
    "Rprop", "attached_gradient", "flush", "functional", "trained_entries",
]  # fmt: skip


def __getattr__(name: str) -> object:
    raise missing_attribute(__name__, name)
