"""States of random number generators: taken, put back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["all_states", "restore", "restore_all", "state"]


def state(kwargs: dict[str, Any]) -> Any:
    """The state of the generator that an operation with these keywords draws from."""
    generator = kwargs.get("generator")
    if generator is not None:
        return generator.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.get_rng_state(), torch.cuda.get_rng_state_all()
    return torch.get_rng_state(), None


def restore(taken: Any, kwargs: dict[str, Any]) -> None:
    """Put back what :func:`state` took."""
    generator = kwargs.get("generator")
    if generator is not None:
        generator.set_state(taken)
        return
    torch.set_rng_state(taken[0])
    if taken[1] is not None:
        torch.cuda.set_rng_state_all(taken[1])


def all_states() -> Any:
    """The states of PyTorch, Python and numpy."""
    return state({}), random.getstate(), np.random.get_state()  # noqa: NPY002  (the global one is meant)


def restore_all(taken: Any) -> None:
    """Put back what :func:`all_states` took."""
    restore(taken[0], {})
    random.setstate(taken[1])
    np.random.set_state(taken[2])  # noqa: NPY002
