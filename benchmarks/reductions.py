"""Masked means over half of the entries, forward and backward, beside torch.masked, a plain sum, and the dense mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import measure
from maskgrad import kernels

SIZE = 4096


def run(progress: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Every case of this file, one row for each peer; ``progress`` is told what is being measured."""
    torch.manual_seed(0)
    values, mask = torch.randn(SIZE, SIZE), torch.rand(SIZE, SIZE) < 0.5
    tokens = (torch.rand(SIZE, 1) < 0.5).expand(SIZE, SIZE)
    rows = []
    for dim in ((1,), (0,), (0, 1)):
        progress(f"mean over {dim}")
        rows += _mean(values, mask, dim)
        progress(f"gradient of the mean over {dim}")
        rows += _gradient(values, mask, dim)
    progress("mean under a broadcast mask")
    rows += _mean(values, tokens, (0, 1), "broadcast mask, ")
    progress("mean of bfloat16")
    rows += _mean(values.to(torch.bfloat16), mask, (1,), "bfloat16, ", rtol=2e-2, atol=1e-2)
    return rows


def _mean(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], what: str = "", **tolerance: float
) -> list[dict[str, Any]]:
    tolerance = tolerance or {"rtol": 1e-3, "atol": 1e-5}
    dense = values.mean(dim)

    def check(ours: Tensor, theirs: Tensor) -> None:
        if theirs is not dense:
            torch.testing.assert_close(ours, theirs, **tolerance)

    def mean_of_all() -> Tensor:
        torch.mean(values, dim, out=dense)
        return dense

    def plain() -> Tensor:
        return torch.where(mask, values, 0).sum(dim) / mask.sum(dim)

    return measure(
        "reductions",
        f"masked mean {SIZE}x{SIZE}, {what}half specified, over {dim}",
        {
            "maskgrad": lambda: kernels.masked_mean(values, mask, dim, False)[0],
            "torch.masked.mean": lambda: torch.masked.mean(values, dim, mask=mask),
            "where + sum": plain,
            "dense mean": mean_of_all,
        },
        # Ratios count maskgrad as 1: at most three times the dense mean's time is a ratio of at least 1/3.
        goals={"torch.masked.mean": (">=", 20), "dense mean": (">=", 0.333)} if not what else {},
        check=check,
        rounds=15,
    )


def _gradient(values: Tensor, mask: Tensor, dim: tuple[int, ...]) -> list[dict[str, Any]]:
    leaf = values.clone().requires_grad_()
    weight = torch.randn(kernels.masked_count(mask, dim, False).shape)

    def backward(result: Tensor) -> Callable[[], Tensor]:
        return lambda: torch.autograd.grad(result, leaf, weight, retain_graph=True)[0]

    return measure(
        "reductions",
        f"gradient of the masked mean {SIZE}x{SIZE} over {dim}",
        {
            "maskgrad": backward(kernels.masked_mean(leaf, mask, dim, False)[0]),
            "torch.masked.mean": backward(torch.masked.mean(leaf, dim, mask=mask)),
            "where + sum": backward(torch.where(mask, leaf, 0).sum(dim) / mask.sum(dim)),
        },
        rounds=9,
    )
