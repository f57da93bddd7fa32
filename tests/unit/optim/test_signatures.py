"""Constructors are those of torch.optim, and of the functions too; hyperparameters out of range are named."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from maskgrad import optim
from tests.unit.optim.optimizers import NAMES, NAN


@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(torch.optim, name)])
def test_constructors_have_the_signature_of_torch(name: str) -> None:
    ours = inspect.signature(getattr(optim, name)).parameters
    theirs = inspect.signature(getattr(torch.optim, name)).parameters
    assert [p for p in ours if p not in ("unspecified", "state", "bias_correction")] == list(theirs)
    for key, parameter in theirs.items():
        assert ours[key].default == parameter.default, key
        assert ours[key].kind == parameter.kind, key
    for key, default in (("unspecified", "skip"), ("state", "full")):
        assert (ours[key].default, ours[key].kind) == (default, inspect.Parameter.KEYWORD_ONLY)


@pytest.mark.parametrize("name", NAMES)
def test_the_function_has_the_defaults_of_the_class(name: str) -> None:
    if name == "AdamW":  # adam_ with decoupled_weight_decay
        return
    function = inspect.signature(getattr(optim.functional, f"{name.lower()}_")).parameters
    constructor = inspect.signature(getattr(optim, name)).parameters
    shared = function.keys() & constructor.keys()
    assert shared >= {"maximize"} | (set() if name == "Rprop" else {"lr"})
    assert all(function[key].default == constructor[key].default for key in shared)


BAD: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("RMSprop", {"alpha": -0.1}, ValueError, "alpha must be at least 0, got -0.1"),
    ("RMSprop", {"momentum": NAN}, ValueError, "momentum must be finite, got nan"),
    ("RMSprop", {"eps": -1}, ValueError, "eps must be at least 0"),
    ("Adadelta", {"rho": 1.1}, ValueError, "rho must be at least 0 and at most 1, got 1.1"),
    ("Adadelta", {"rho": "slow"}, TypeError, "rho must be a number"),
    ("NAdam", {"momentum_decay": -1}, ValueError, "momentum_decay must be at least 0"),
    ("Rprop", {"etas": (1.1, 1.2)}, ValueError, "etas must be a number between 0 and 1 and one above 1"),
    ("Rprop", {"etas": (0.5, 0.9)}, ValueError, "etas must be a number between 0 and 1 and one above 1"),
    ("Rprop", {"etas": 0.5}, TypeError, "etas must be two numbers, got 0.5"),
    ("Rprop", {"etas": (0.5, NAN)}, ValueError, r"etas\[1\] must be finite, got nan"),
    (
        "Rprop",
        {"step_sizes": (1.0, 0.5)},
        ValueError,
        "step_sizes must be two numbers of at least 0 in ascending order",
    ),
    (
        "Rprop",
        {"step_sizes": (-1.0, 0.5)},
        ValueError,
        "step_sizes must be two numbers of at least 0 in ascending order",
    ),
    ("ASGD", {"lambd": -1}, ValueError, "lambd must be at least 0"),
    ("ASGD", {"alpha": NAN}, ValueError, "alpha must be finite"),
    ("ASGD", {"t0": float("inf")}, ValueError, "t0 must be finite"),
    ("Adam", {"eps": NAN}, ValueError, "eps must be finite"),
    ("Adagrad", {"lr_decay": -1.0}, ValueError, "lr_decay must be at least 0, got -1"),
    (
        "Adagrad",
        {"initial_accumulator_value": NAN},
        ValueError,
        "initial_accumulator_value must be finite, got nan",
    ),
    ("SGD", {"momentum": -0.1}, ValueError, "momentum must be at least 0, got -0.1"),
    ("SGD", {"dampening": float("inf")}, ValueError, "dampening must be finite, got inf"),
    ("SGD", {"nesterov": True}, ValueError, "nesterov=True needs momentum > 0 and dampening = 0"),
    (
        "SGD",
        {"nesterov": True, "momentum": 0.9, "dampening": 0.1},
        ValueError,
        "got momentum=0.9 and dampening=0.1",
    ),
]


@pytest.mark.parametrize(("name", "options", "error", "words"), BAD)
def test_hyperparameters_out_of_range(
    name: str, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        getattr(optim, name)([nn.Parameter(torch.ones(1))], **options)
