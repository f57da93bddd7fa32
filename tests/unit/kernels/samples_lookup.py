"""Calls of the look-up: operator, arguments, keyword arguments."""

from __future__ import annotations

from typing import Any

import torch


def samples() -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    return [
        ("lookup_rows", (torch.randn(5, 3), torch.tensor([4, 0, 4])), {}),
        ("lookup_rows", (torch.randn(5, 3, 2).half(), torch.tensor([1, 2], dtype=torch.int32)), {}),
    ]
