"""A thousand random steps, every kind of gradient in turns: the dense optimizer's result, to rounding."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.unit.optim.kinds import KINDS
from tests.unit.optim.lazy.test_zero_gradients import exactness
from tests.unit.optim.optimizers import every_plain_optimizer

STEPS = 1000


def padded(dense: Tensor) -> mg.PaddedRows:
    """The rows that are not 0, in more slots than there are such rows; NaN in those that are not used."""
    rows = dense.abs().sum(1).nonzero().view(-1)
    free = 2
    values = torch.cat([dense[rows], dense.new_full((free, dense.shape[1]), float("nan"))])
    return mg.PaddedRows(torch.cat([rows, rows.new_full((free,), len(dense))]), values, dense.shape)


WAYS: dict[str, Any] = {
    **KINDS,
    "dense": Tensor.clone,
    "rows": lambda dense: dense.to_sparse(1),
    "padded rows": padded,
    "masked coo": lambda dense: mg.from_sparse(dense.to_sparse()),
    "nothing": lambda dense: (dense * 0).to_sparse(1),
}


@every_plain_optimizer
def test_it_is_the_dense_result(ours: Any, theirs: Any, options: dict[str, Any]) -> None:
    chance, generator = random.Random(0), torch.Generator().manual_seed(0)
    start = torch.randn(6, 4, dtype=torch.float64, generator=generator)
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    options = {**options, "lr": options["lr"] / 10}  # some walk away with a rate that is made for a few steps
    lazy, eager = ours([p], unspecified="zero", **options), theirs([q], **options)
    used = set()
    for _ in range(STEPS):
        grad = torch.randn(6, 4, dtype=torch.float64, generator=generator)
        some = torch.rand(6, 1, generator=generator) < chance.choice((0.1, 0.3, 0.6))
        way = chance.choice(list(WAYS))
        used.add(way)
        grad = torch.where(some, grad, 0) * (way != "nothing")
        mg.attach_gradient(p, WAYS[way](grad))
        q.grad = grad
        lazy.step()
        eager.step()
        lazy.zero_grad()
    assert used == {*WAYS}
    assert q.isfinite().all()
    lazy.flush()
    torch.testing.assert_close(p.detach(), q.detach(), rtol=100 * exactness(ours), atol=100 * exactness(ours))
