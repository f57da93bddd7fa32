"""Calls of the updates: operator, arguments, keyword arguments."""

from __future__ import annotations

from typing import Any

import torch


def samples() -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    indices, rows = torch.tensor([3, 1, 3, 0]), torch.randn(4, 2)
    update = {"lr": 0.1, "weight_decay": 0.1}
    adam = {**update, "step": 2.0, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
    rmsprop = {**update, "alpha": 0.9, "eps": 1e-8}
    return [
        ("sgd_rows_", (torch.randn(5, 2), None, indices, rows), update),
        (
            "sgd_rows_",
            (torch.randn(5, 2), torch.randn(5, 2), indices, rows),
            {**update, "momentum": 0.9, "first_step": torch.rand(5) < 0.5, "factor": -2.0},
        ),
        ("adagrad_rows_", (torch.randn(5, 2), torch.rand(5, 2), indices, rows), {**update, "eps": 1e-10}),
        (
            "rowwise_adagrad_rows_",
            (torch.randn(5, 2), torch.rand(5), indices, rows),
            {**update, "eps": 1e-10},
        ),
        ("adam_rows_", (torch.randn(5, 2), torch.randn(5, 2), torch.rand(5, 2), None, indices, rows), adam),
        (
            "adam_rows_",
            (torch.randn(5, 2), torch.randn(5, 2), torch.rand(5, 2), torch.rand(5, 2), indices, rows),
            {**adam, "decoupled": True},
        ),
        ("rmsprop_rows_", (torch.randn(5, 2), torch.rand(5, 2), None, None, indices, rows), rmsprop),
        (
            "rmsprop_rows_",
            (torch.randn(5, 2), torch.rand(5, 2) + 4, torch.rand(5, 2), torch.rand(5, 2), indices, rows),
            {**rmsprop, "momentum": 0.9},
        ),
    ]
