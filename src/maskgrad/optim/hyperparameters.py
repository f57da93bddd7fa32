"""Checks of hyperparameters and options of optimizers; every error names the argument and the value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

__all__ = ["betas", "check_options", "finite", "flag", "limited", "non_negative", "pair"]

Check: TypeAlias = Callable[[str, Any], Any]
"""Given a name and its value, returns the value to compute with, or raises an error."""
#: options that are one of several words
OPTIONS = {
    "unspecified": {"skip": "entries without a gradient are skipped", "zero": "their gradient is zero"},
    "state": {"full": "one state value for each entry of a parameter", "row": "one for each row"},
    "bias_correction": {"steps": "those of the parameter", "row": "those of each row"},
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


def limited(words: str, holds: Callable[..., bool], read: Check = finite) -> Check:
    """A check: the value, as ``read``, for which ``holds`` is true; a ValueError says it in ``words`` otherwise."""

    def check(name: str, value: Any) -> Any:
        found = read(name, value)
        if not holds(found):
            raise ValueError(f"{name} must be {words}, got {found}")
        return found

    return check


non_negative = limited("at least 0", lambda number: number >= 0)
betas = limited(
    "two numbers of at least 0 and less than 1", lambda two: min(two) >= 0 and max(two) < 1, read=pair
)


def check_options(group: Mapping[str, Any], kind: str, has_statistics: bool, is_torchs: bool) -> None:
    """Raise a ValueError if a common option of an optimizer ``kind`` is unknown or not available."""
    for name, known in OPTIONS.items():
        if name in group and group[name] not in known:
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
