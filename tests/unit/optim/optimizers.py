"""Every optimizer next to its counterpart in torch, for the tests that all of them share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad.optim import SGD, Adagrad
from maskgrad.optim.optimizer import MaskedOptimizer

NAN = float("nan")
OPTIONS: dict[str, tuple[type[MaskedOptimizer], type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adagrad": (Adagrad, torch.optim.Adagrad, {"lr": 0.1}),
    "adagrad, all options": (
        Adagrad,
        torch.optim.Adagrad,
        {
            "lr": 0.1,
            "lr_decay": 0.1,
            "weight_decay": 0.1,
            "initial_accumulator_value": 0.5,
            "eps": 1e-3,
            "maximize": True,
        },
    ),
    "sgd": (SGD, torch.optim.SGD, {"lr": 0.1}),
    "sgd, momentum": (
        SGD,
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "maximize": True},
    ),
    "sgd, nesterov": (SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "sgd, dampening": (SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
}
every_optimizer = pytest.mark.parametrize(("ours", "theirs", "options"), OPTIONS.values(), ids=OPTIONS.keys())


def bits(t: Tensor) -> Tensor:
    return t.detach().contiguous().view(torch.int32)
