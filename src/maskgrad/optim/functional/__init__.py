"""Update rules as functions: one step on a plain tensor, whatever the kind of gradient."""

from __future__ import annotations

from maskgrad.optim.functional.adadelta import adadelta_
from maskgrad.optim.functional.adagrad import adagrad_
from maskgrad.optim.functional.adam import adam_
from maskgrad.optim.functional.adamax import adamax_
from maskgrad.optim.functional.asgd import asgd_
from maskgrad.optim.functional.lamb import lamb_
from maskgrad.optim.functional.lion import lion_
from maskgrad.optim.functional.nadam import nadam_
from maskgrad.optim.functional.radam import radam_
from maskgrad.optim.functional.rmsprop import rmsprop_
from maskgrad.optim.functional.rprop import rprop_
from maskgrad.optim.functional.sgd import sgd_

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
