"""Constructors are those of torch.optim, and of the functions too; hyperparameters out of range are named."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from maskgrad import optim
from tests.unit.optim.optimizers import NAMES


@pytest.mark.parametrize("name", NAMES)
def test_constructors_have_the_signature_of_torch_and_functions_their_defaults(name: str) -> None:
    ours = inspect.signature(getattr(optim, name)).parameters
    assert all(f"\n    {key}: " in getattr(optim, name).__doc__ for key in ours)
    if hasattr(torch.optim, name):
        theirs = inspect.signature(getattr(torch.optim, name)).parameters
        assert [p for p in ours if p not in ("unspecified", "state", "bias_correction")] == list(theirs)
        assert all((ours[key].default, ours[key].kind) == (p.default, p.kind) for key, p in theirs.items())
    for key, default in (("unspecified", "skip"), ("state", "full")):
        assert (ours[key].default, ours[key].kind) == (default, inspect.Parameter.KEYWORD_ONLY)
    if name != "AdamW":  # adam_ with decoupled_weight_decay
        function = inspect.signature(getattr(optim.functional, f"{name.lower()}_")).parameters
        shared = function.keys() & ours.keys()
        assert shared >= {"maximize"} | (set() if name == "Rprop" else {"lr"})
        assert all(function[key].default == ours[key].default for key in shared)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Adadelta", {"rho": 1.1}, "rho must be at least 0 and at most 1, got 1.1"),
        ("Rprop", {"etas": (1.1, 1.2)}, "etas must be a number between 0 and 1 and one above 1"),
        ("Rprop", {"etas": (0.5, 0.9)}, "etas must be a number between 0 and 1 and one above 1"),
        (
            "Rprop",
            {"step_sizes": (1.0, 0.5)},
            "step_sizes must be two numbers of at least 0 in ascending order",
        ),
        ("Adam", {"betas": (1.0, 0.9)}, "betas must be two numbers of at least 0 and less than 1"),
        ("SGD", {"nesterov": True}, "nesterov=True needs momentum > 0 and dampening = 0"),
        ("SGD", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "got momentum=0.9 and dampening=0.1"),
    ],
)
def test_hyperparameters_out_of_range(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        getattr(optim, name)([nn.Parameter(torch.ones(1))], **options)
