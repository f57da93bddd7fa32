"""Checks of the numbers and options that optimizers take; every refusal names the argument and the value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["check_options", "finite", "non_negative"]


def finite(name: str, value: float | Tensor) -> float:
    """``value`` as a Python number.

    Raises:
        TypeError: it is not a number or a tensor with one element.
        ValueError: it is a tensor with more elements, NaN or infinite.
    """
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"{name} must be one number, got a tensor of shape {tuple(value.shape)}")
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number or a tensor with one element, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)


def non_negative(name: str, value: float | Tensor) -> float:
    """``value`` as a Python number that is finite and at least 0.

    Raises:
        TypeError: it is not a number or a tensor with one element.
        ValueError: it is a tensor with more elements, NaN, infinite or negative.
    """
    number = finite(name, value)
    if number < 0:
        raise ValueError(f"{name} must be at least 0, got {number}")
    return number


def check_options(group: Mapping[str, Any]) -> None:
    """The options that all optimizers share.

    Raises:
        ValueError: an option is unknown or not available.
    """
    if group["unspecified"] != "skip":
        raise ValueError(
            f"unspecified={group['unspecified']!r} is not available"
            + (" yet" if group["unspecified"] == "zero" else "")
            + "; use unspecified='skip': entries without a gradient keep their parameter and state"
        )
    if group["state"] != "full":
        raise ValueError(
            f"state={group['state']!r} is not available"
            + (" yet" if group["state"] == "row" else "")
            + "; use state='full': one state value for each entry of a parameter"
        )
    if group["differentiable"]:
        raise ValueError(
            "differentiable=True is not available; write the update out of place to differentiate through it, "
            "or use torch.optim"
        )
