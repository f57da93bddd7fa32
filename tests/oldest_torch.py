"""What the oldest PyTorch that the library takes cannot do; where a feature can be asked for, tests ask for it."""

from __future__ import annotations

import pytest
import torch

#: The version of ``make test-oldest``.
IS_OLDEST = torch.__version__.startswith("2.9.")


def not_on_the_oldest(reason: str) -> pytest.MarkDecorator:
    """Skip a test there: ``reason`` says what PyTorch 2.9 lacks."""
    return pytest.mark.skipif(IS_OLDEST, reason=f"PyTorch 2.9 {reason}")


def skip_on_the_oldest(reason: str) -> None:
    """Leave a test there, or the rest of it."""
    if IS_OLDEST:
        pytest.skip(f"PyTorch 2.9 {reason}")


def on_the_oldest(reasons: dict[str, str]) -> dict[str, str]:
    """What fails there only, by name; empty for a newer PyTorch. Lists of what fails take it in."""
    return {name: f"PyTorch 2.9 {reason}" for name, reason in reasons.items()} if IS_OLDEST else {}
