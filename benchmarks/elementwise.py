"""Elementwise operations on small tensors, where what counts is the price of a call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

import maskgrad as mg
from benchmarks.measure import measure

CALLS = 200


def run(progress: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Every case of this file, one row for each peer; a time is that of 200 calls."""
    torch.manual_seed(0)
    data = torch.randn(32, 8)
    mask = torch.rand(32, 8) < 0.5
    ours = mg.masked(data, mask)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.masked announces itself as a prototype
        theirs = torch.masked.masked_tensor(data, mask)
        rows = []
        for name, operation in {
            "a * a": lambda a: a * a,
            "exp(a)": torch.exp,
            "a + a": lambda a: a + a,
        }.items():
            progress(name)
            rows += _calls(name, operation, ours, theirs, data)
    return rows


def _calls(
    name: str, operation: Callable[[Any], Any], ours: Any, theirs: Any, data: torch.Tensor
) -> list[dict[str, Any]]:
    def repeat(operand: Any) -> Callable[[], Any]:
        def calls() -> Any:
            for _ in range(CALLS - 1):
                operation(operand)
            return operation(operand)

        return calls

    def check(expected: Any, found: Any) -> None:
        plain = found.to_tensor(0.0) if isinstance(found, torch.masked.MaskedTensor) else found * ours.mask
        torch.testing.assert_close(expected.filled(0.0), plain)

    return measure(
        "elementwise",
        f"{name} on 32x8 float32, half specified, {CALLS} calls",
        {"maskgrad": repeat(ours), "torch.masked": repeat(theirs), "dense": repeat(data)},
        goals={"torch.masked": (">=", 3)} if name == "a * a" else {},
        check=check,
    )
