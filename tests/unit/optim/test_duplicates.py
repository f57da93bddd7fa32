"""Duplicates are merged before anything nonlinear happens: how a gradient is written down changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskgrad import attach_gradient
from maskgrad.optim.optimizer import MaskedOptimizer
from tests.unit.optim.kinds import coo
from tests.unit.optim.optimizers import every_optimizer, every_plain_optimizer


def arrive(ours: Any, start: Tensor, gradients: list[Any], options: dict[str, Any]) -> Tensor:
    p = nn.Parameter(start.clone())
    optimizer = ours([p], **options)
    for gradient in gradients:
        attach_gradient(p, gradient)
        optimizer.step()
    return p.detach()


@every_optimizer
def test_merged_split_and_permuted_gradients_are_one(
    ours: type[MaskedOptimizer], theirs: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    start = torch.randn(5, 3)
    merged, split, permuted, entries = [], [], [], []
    for _ in range(4):
        rows, values = torch.randint(5, (1, 7)), torch.randn(7, 3)
        once = coo(rows, values, (5, 3)).coalesce()
        merged.append(once)
        order = torch.randperm(7)
        permuted.append(coo(rows[:, order], values[order], (5, 3)))
        part = torch.rand(7, 3)
        split.append(coo(rows.repeat(1, 2), torch.cat([values * part, values * (1 - part)]), (5, 3)))
        at = torch.stack([rows[0].repeat_interleave(3), torch.arange(3).repeat(7)])
        entries.append(coo(at, values.reshape(-1), (5, 3)))
    expected = arrive(ours, start, merged, options)
    for other in (split, permuted, entries):
        torch.testing.assert_close(arrive(ours, start, other, options), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_plain_optimizer
def test_4096_ones_are_4096(
    dtype: torch.dtype,
    ours: type[MaskedOptimizer],
    theirs: type[torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    # torch adds halves in halves: 2048 and 256.
    start = torch.zeros(3, 2)
    listed = coo(torch.ones(1, 4096, dtype=torch.int64), torch.ones(4096, 2), (3, 2), dtype)
    single = coo([[1]], torch.full((1, 2), 4096.0), (3, 2))
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    a, b = ours([p], **options), ours([q], **options)
    for _ in range(2):
        attach_gradient(p, listed)
        attach_gradient(q, single)
        a.step()
        b.step()
    torch.testing.assert_close(p, q)
    for key, value in b.state[q].items():
        torch.testing.assert_close(a.state[p][key], value)
    assert q[1].abs().min() > 0
