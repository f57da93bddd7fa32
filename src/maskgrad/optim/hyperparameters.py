"""Checks of hyperparameters and options of optimizers; every error names the argument and the value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

__all__ = ["ascending", "betas", "check_options", "correction", "finite", "flag", "non_negative", "pair"]

#: options of every optimizer
OPTIONS = {
    "unspecified": {"skip": "entries without a gradient are skipped", "zero": "their gradient is zero"},
    "state": {"full": "one state value for each entry of a parameter", "row": "one for each row"},
}


def finite(name: str, value: float | Tensor) -> float:
    """Return ``value`` as a finite Python number; raise a TypeError or ValueError otherwise."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"{name} must be a scalar, got a tensor of shape {tuple(value.shape)}")
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number or a tensor with one element, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)


def non_negative(name: str, value: float | Tensor) -> float:
    """Return ``value`` as a finite Python number of at least 0."""
    number = finite(name, value)
    if number < 0:
        raise ValueError(f"{name} must be at least 0, got {number}")
    return number


def flag(name: str, value: Any) -> bool:
    """Return whether an option is on (truth value)."""
    return bool(value)


def pair(name: str, value: Sequence[float | Tensor]) -> tuple[float, float]:
    """Return ``value`` as two finite Python numbers."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"{name} must be two numbers, got {value!r}")
    if len(value) != 2:
        raise ValueError(f"{name} must be two numbers, got {value!r}")
    return finite(f"{name}[0]", value[0]), finite(f"{name}[1]", value[1])


def betas(name: str, value: Sequence[float | Tensor]) -> tuple[float, float]:
    """Check two decay rates, each at least 0 and less than 1."""
    first, second = pair(name, value)
    if not (0 <= first < 1 and 0 <= second < 1):
        raise ValueError(f"{name} must be two numbers of at least 0 and less than 1, got {(first, second)}")
    return first, second


def correction(name: str, value: Any) -> str:
    """Check the option ``bias_correction``."""
    if value not in ("steps", "row"):
        raise ValueError(
            f"{name} must be 'steps' (those of the parameter) or 'row' (those of each row), got {value!r}; write "
            f"{name}='steps'"
        )
    return str(value)


def ascending(name: str, value: Sequence[float | Tensor]) -> tuple[float, float]:
    """Check a lower and an upper bound, both at least 0."""
    least, most = pair(name, value)
    if not 0 <= least <= most:
        raise ValueError(f"{name} must be two numbers of at least 0 in ascending order, got {(least, most)}")
    return least, most


def check_options(group: Mapping[str, Any], kind: str, has_statistics: bool, is_torchs: bool) -> None:
    """Raise a ValueError if a common option of an optimizer ``kind`` is unknown or not available."""
    for name, known in OPTIONS.items():
        if group[name] not in known:
            choices = " or ".join(f"{name}={value!r} ({about})" for value, about in known.items())
            raise ValueError(f"{name}={group[name]!r} is not available; use {choices}")
    if group["state"] == "row" and not has_statistics:
        raise ValueError(
            f"state='row' is not available: {kind} has no second moment to be kept per row; use state='full'"
        )
    if group["differentiable"] and not is_torchs:
        raise ValueError(
            "differentiable=True is not available; write the update out of place to differentiate through it, "
            "or use torch.optim"
        )
