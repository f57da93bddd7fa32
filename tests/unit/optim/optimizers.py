"""Every optimizer next to its counterpart in torch, for the tests that all of them share."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad import optim
from maskgrad.optim.optimizer import MaskedOptimizer
from maskgrad.optim.rule import Hyperparameters
from maskgrad.optim.torch_steps import FUSED
from tests.unit.optim.papers import PaperLAMB, PaperLion

NAN = float("nan")
PAPERS: dict[str, type[torch.optim.Optimizer]] = {"Lion": PaperLion, "LAMB": PaperLAMB}
NAMES = [
    "SGD", "Adagrad", "Adam", "AdamW", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD",
    "Lion", "LAMB",
]  # fmt: skip
WITH_ROW_STATE = ["Adagrad", "Adam", "AdamW", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "LAMB"]
BETAS = {"betas": (0.7, 0.95)}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "adagrad": ("Adagrad", {}),
    "adagrad, all options": (
        "Adagrad",
        {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3, "maximize": True},
    ),
    "sgd": ("SGD", {}),
    "sgd, momentum": ("SGD", {"momentum": 0.9, "weight_decay": 0.1, "maximize": True}),
    "sgd, nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "sgd, dampening": ("SGD", {"momentum": 0.9, "dampening": 0.3}),
    "adam": ("Adam", {}),
    "adam, all options": ("Adam", {**BETAS, "eps": 1e-3, "weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    "adam, decoupled": ("Adam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adamw": ("AdamW", {}),
    "adamw, all options": ("AdamW", {**BETAS, "eps": 1e-3, "weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop, momentum": ("RMSprop", {"momentum": 0.9, "weight_decay": 0.1, "maximize": True}),
    "rmsprop, centered": ("RMSprop", {"alpha": 0.8, "eps": 1e-3, "centered": True}),
    "rmsprop, all options": ("RMSprop", {"alpha": 0.8, "momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    "adadelta": ("Adadelta", {"eps": 1e-2}),
    "adadelta, all options": ("Adadelta", {"rho": 0.7, "eps": 1e-2, "weight_decay": 0.1, "maximize": True}),
    "adamax": ("Adamax", {}),
    "adamax, all options": ("Adamax", {**BETAS, "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    "nadam": ("NAdam", {}),
    "nadam, all options": (
        "NAdam",
        {**BETAS, "eps": 1e-3, "weight_decay": 0.1, "momentum_decay": 0.1, "maximize": True},
    ),
    "nadam, decoupled": ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": ("RAdam", {}),
    "radam, all options": ("RAdam", {**BETAS, "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    "radam, decoupled": ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "rprop": ("Rprop", {}),
    "rprop, all options": ("Rprop", {"etas": (0.3, 1.5), "step_sizes": (0.05, 0.4), "maximize": True}),
    "asgd": ("ASGD", {}),
    "asgd, all options": (
        "ASGD",
        {"lambd": 0.1, "alpha": 0.5, "t0": 3, "weight_decay": 0.1, "maximize": True},
    ),
    "lion": ("Lion", {}),
    "lion, all options": ("Lion", {**BETAS, "weight_decay": 0.1, "maximize": True}),
    "lamb": ("LAMB", {}),
    "lamb, all options": (
        "LAMB",
        {**BETAS, "eps": 1e-3, "bias_correction": False, "norm_bounds": (0.5, 2.0), "maximize": True},
    ),
}  # fmt: skip
OPTIONS: dict[str, tuple[type[MaskedOptimizer], type[torch.optim.Optimizer], dict[str, Any]]] = {
    case: (
        getattr(optim, name),
        PAPERS[name] if name in PAPERS else getattr(torch.optim, name),
        {"lr": 1.0 if name == "Adadelta" else 0.1, **options},
    )
    for case, (name, options) in CASES.items()
}
every_optimizer = pytest.mark.parametrize(("ours", "theirs", "options"), OPTIONS.values(), ids=OPTIONS.keys())
PLAIN = {case: triple for case, triple in OPTIONS.items() if "," not in case}
every_plain_optimizer = pytest.mark.parametrize(
    ("ours", "theirs", "options"), PLAIN.values(), ids=PLAIN.keys()
)


def same_way(kind: type[torch.optim.Optimizer]) -> dict[str, Any]:
    """The options with which PyTorch steps some small dense parameters as we do without any."""
    if kind in PAPERS.values():
        return {}
    return {"fused": True} if kind in FUSED else {}


def bits(t: Tensor) -> Tensor:
    return t.detach().contiguous().view(torch.int32)


def accepts(kind: Any, name: str) -> bool:
    """Whether the constructor of an optimizer has an argument of this name."""
    return name in inspect.signature(kind).parameters


def numbers_of(name: str, **options: Any) -> Hyperparameters:
    """The hyperparameters of an optimizer that is made with ``options``, checked."""
    optimizer = getattr(optim, name)([torch.nn.Parameter(torch.ones(1))], **options)
    numbers: Hyperparameters = optimizer._read_group(optimizer.param_groups[0])
    return numbers
