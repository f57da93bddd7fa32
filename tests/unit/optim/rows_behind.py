"""One run of a lazy optimizer next to a dense one, for the tests of what a missing gradient means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.optim.optimizer import MaskedOptimizer

Scheduler = Callable[[torch.optim.Optimizer], Any]


def gradients(size: Sequence[int], steps: int, *, every: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Rows and their float64 gradients: all but the last two rows first, then now and then one, twice or none.

    The last row never gets one, the last but one only towards the end.
    """
    source = torch.Generator().manual_seed(seed)
    number = size[0]
    result = []
    for step in range(steps):
        if step == 0:
            rows = torch.arange(number - 2)
        elif step % every:
            rows = torch.empty(0, dtype=torch.int64)
        else:
            highest = number - 1 if step > steps * 0.8 else number - 2
            rows = torch.randint(highest, (int(torch.randint(4, (), generator=source)),), generator=source)
        values = torch.randn(len(rows), *size[1:], generator=source, dtype=torch.float64)
        result.append((rows, values))
    return result


def sparse(rows: Tensor, values: Tensor, like: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(rows[None], values.to(like.dtype), like.shape, check_invariants=True)


def dense(rows: Tensor, values: Tensor, like: Tensor) -> Tensor:
    return torch.zeros(like.shape, dtype=torch.float64).index_add_(0, rows, values)


def beside_dense(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
    *,
    dtype: torch.dtype = torch.float64,
    eager_dtype: torch.dtype = torch.float64,
    size: Sequence[int] = (9, 3),
    steps: int = 300,
    every: int = 5,
    seed: int = 0,
    schedule: Scheduler | None = None,
    meanwhile: Callable[[int, nn.Parameter, MaskedOptimizer, torch.optim.Optimizer], None] | None = None,
    **more: Any,
) -> tuple[nn.Parameter, nn.Parameter, MaskedOptimizer, torch.optim.Optimizer]:
    """Both parameters and optimizers after a run. Nothing has been flushed at the end."""
    start = torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.to(eager_dtype))
    lazy, eager = ours([p], unspecified="zero", **options, **more), theirs([q], **options)
    schedulers = [schedule(lazy), schedule(eager)] if schedule else []
    for step, (rows, exact) in enumerate(gradients(size, steps, every=every, seed=seed)):
        values = exact.to(dtype).double()
        p.grad, q.grad = sparse(rows, values, p), dense(rows, values, q).to(eager_dtype)
        lazy.step()
        eager.step()
        for scheduler in schedulers:
            scheduler.step()
        if meanwhile is not None:
            meanwhile(step, p, lazy, eager)
    return p, q, lazy, eager


def assert_close(p: Tensor, q: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(p.detach().double(), q.detach(), rtol=tolerance, atol=tolerance)


def assert_states_close(
    lazy: torch.optim.Optimizer, p: Tensor, eager: torch.optim.Optimizer, q: Tensor, tolerance: float
) -> None:
    compared = 0
    for name, value in eager.state[q].items():
        if isinstance(value, Tensor) and value.shape == q.shape:
            assert_close(lazy.state[p][name], value, tolerance)
            compared += 1
    assert compared or not eager.state[q]
