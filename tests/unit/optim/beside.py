"""Optimizers next to PyTorch's with all gradients: what a missing gradient means, skipped or zero."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.optim.optimizer import MaskedOptimizer

Scheduler = Callable[[torch.optim.Optimizer], Any]


class Skipped:
    """PyTorch's optimizer with zeros for what is unspecified, which is put back after each step."""

    def __init__(self, optimizer: torch.optim.Optimizer, param: Tensor) -> None:
        self.optimizer, self.param = optimizer, param

    def step(self, dense: Tensor, mask: Tensor) -> None:
        param, before = (
            self.param.detach().clone(),
            copy.deepcopy(dict(self.optimizer.state.get(self.param, {}))),
        )
        self.param.grad = dense.clone()
        self.optimizer.step()
        put_back(self.optimizer, self.param, mask, param, before)

    def assert_states_close(self, state: dict[str, Any], rows: slice) -> None:
        for name, value in self.optimizer.state[self.param].items():
            if isinstance(value, Tensor):
                expected, found = (
                    (value, state[name]) if not value.dim() else (value[rows], state[name][rows])
                )
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def put_back(
    optimizer: torch.optim.Optimizer, q: Tensor, mask: Tensor, param: Tensor, before: dict[str, Any]
) -> None:
    """What a step of PyTorch's ``optimizer`` did to entries without a gradient, by what was before."""
    q.copy_(torch.where(mask, q, param))
    (rate,) = (group["lr"] for group in optimizer.param_groups if any(q is p for p in group["params"]))
    starts = {"ax": param, "step_size": torch.full_like(param, float(rate))}
    for name, value in optimizer.state.get(q, {}).items():
        if isinstance(value, Tensor) and value.shape == q.shape and value.dim():
            old = before.get(name)
            value.copy_(
                torch.where(mask, value, starts.get(name, torch.zeros_like(param)) if old is None else old)
            )


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
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.double())
    lazy, eager = ours([p], unspecified="zero", **options, **more), theirs([q], **options)
    schedulers = [schedule(lazy), schedule(eager)] if schedule else []
    for step, (rows, exact) in enumerate(gradients(size, steps, every=every, seed=seed)):
        values = exact.to(dtype).double()
        p.grad, q.grad = sparse(rows, values, p), dense(rows, values, q)
        lazy.step()
        eager.step()
        for scheduler in schedulers:
            scheduler.step()
        if meanwhile is not None:
            meanwhile(step, p, lazy, eager)
    return p, q, lazy, eager


def dense_alone(
    theirs: Callable[..., torch.optim.Optimizer], options: dict[str, Any], dtype: torch.dtype
) -> nn.Parameter:
    """Where the dense optimizer of :func:`beside_dense` arrives if it computes in ``dtype``."""
    start = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q = nn.Parameter(start.to(dtype))
    eager = theirs([q], **options)
    for rows, exact in gradients((9, 3), 300, every=5, seed=0):
        q.grad = dense(rows, exact.to(dtype).double(), q).to(dtype)
        eager.step()
    return q


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
