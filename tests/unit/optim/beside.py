"""Optimizers next to PyTorch's with all gradients: what a missing gradient means, skipped or zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.optim.optimizer import MaskedOptimizer


@torch.no_grad()
def put_back(
    optimizer: torch.optim.Optimizer, q: Tensor, mask: Tensor, param: Tensor, before: dict[str, Any]
) -> None:
    """What a step of PyTorch's ``optimizer`` did to entries without a gradient, by what was before."""
    q.copy_(torch.where(mask, q, param))
    (rate,) = (group["lr"] for group in optimizer.param_groups if any(q is p for p in group["params"]))
    size = complex(rate, rate) if param.is_complex() else float(rate)
    starts = {"ax": param, "step_size": torch.full_like(param, size)}
    for name, value in optimizer.state.get(q, {}).items():
        if isinstance(value, Tensor) and value.shape == q.shape and value.dim():
            old = before.get(name)
            value.copy_(
                torch.where(mask, value, starts.get(name, torch.zeros_like(param)) if old is None else old)
            )


def gradients(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of 9 and their gradients: all but the last two rows first, then now and then one, twice or none.

    The last row never gets one, the last but one only towards the end.
    """
    source = torch.Generator().manual_seed(0)
    for step in range(steps):
        rows = torch.arange(7 if step == 0 else 0)
        if step and step % 5 == 0:
            number = int(torch.randint(4, (), generator=source))
            rows = torch.randint(8 if step > steps * 0.8 else 7, (number,), generator=source)
        yield rows, torch.randn(len(rows), 3, generator=source, dtype=torch.float64)


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
    precise: torch.dtype = torch.float64,
    steps: int = 300,
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
    meanwhile: Callable[[int, nn.Parameter, MaskedOptimizer, torch.optim.Optimizer], None] | None = None,
) -> tuple[nn.Parameter, nn.Parameter, MaskedOptimizer, torch.optim.Optimizer]:
    """Both parameters and optimizers after a run, ours in ``dtype``. Nothing has been flushed at the end."""
    start = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.to(precise, copy=True))
    lazy, eager = ours([p], unspecified="zero", **options), theirs([q], **options)
    schedulers = [schedule(lazy), schedule(eager)] if schedule else []
    for step, (rows, exact) in enumerate(gradients(steps)):
        values = exact.to(dtype).double()
        p.grad, q.grad = sparse(rows, values, p), dense(rows, values, q).to(precise)
        for one in (lazy, eager, *schedulers):
            one.step()
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
