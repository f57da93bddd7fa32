"""The update rules, each written once: plain tensors of one shape, in place, no bookkeeping.

Who owns the tensors decides what an update touches: the engine passes a parameter and its state themselves
(dense gradient) or copies of their specified entries (any other gradient). The operations and their order are
those of ``torch.optim``, so that a dense step gives the same bits. A rule reads ``grad`` and never writes it.

An accumulator may also have one value per row (size 1 in the other dimensions); ``specified`` then knows which
entries a row's statistic is taken over.
"""

from __future__ import annotations

from maskgrad.optim.rules.adadelta import adadelta_
from maskgrad.optim.rules.adagrad import adagrad_
from maskgrad.optim.rules.adam import adam_
from maskgrad.optim.rules.adamax import adamax_
from maskgrad.optim.rules.asgd import asgd_
from maskgrad.optim.rules.lamb import lamb_
from maskgrad.optim.rules.lion import lion_
from maskgrad.optim.rules.nadam import nadam_
from maskgrad.optim.rules.radam import radam_
from maskgrad.optim.rules.rmsprop import rmsprop_
from maskgrad.optim.rules.rprop import rprop_
from maskgrad.optim.rules.sgd import sgd_

__all__ = [
    "adadelta_",
    "adagrad_",
    "adam_",
    "adamax_",
    "asgd_",
    "lamb_",
    "lion_",
    "nadam_",
    "radam_",
    "rmsprop_",
    "rprop_",
    "sgd_",
]
