"""Every optimizer against its formula in float64, for entries and, where there is one, for row state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from maskgrad import attach_gradient
from maskgrad.masked_tensor import masked
from maskgrad.optim.optimizer import MaskedOptimizer
from tests.unit.optim.formulas import FORMULAS, Array, itself
from tests.unit.optim.optimizers import OPTIONS, WITH_ROW_STATE, every_optimizer

WITH_ROWS = {
    case: (ours, options)
    for case, (ours, _, options) in OPTIONS.items()
    if ours.__name__ in WITH_ROW_STATE and not options.get("centered")
}


def run(
    ours: Callable[..., MaskedOptimizer], start: Tensor, gradients: list[Tensor], **options: Any
) -> Tensor:
    p = nn.Parameter(start.clone())
    optimizer = ours([p], **options)
    for gradient in gradients:
        p.grad = gradient
        optimizer.step()
    return p.detach()


@every_optimizer
def test_float64_follows_the_formula(
    ours: type[MaskedOptimizer], theirs: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    start, gradients = torch.randn(3, 4, dtype=torch.float64), torch.randn(20, 3, 4, dtype=torch.float64)
    expected = FORMULAS[ours.__name__](start.numpy(), list(gradients.numpy()), itself, itself, **options)
    arrived = run(ours, start, list(gradients), **options)
    # torch keeps mu_product of NAdam, and eta of ASGD, in float32.
    tolerance = 1e-6 if ours.__name__ in ("NAdam", "ASGD") else 1e-12
    torch.testing.assert_close(arrived, torch.from_numpy(expected), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("ours", "options"), WITH_ROWS.values(), ids=WITH_ROWS.keys())
def test_row_state_follows_the_formula(ours: type[MaskedOptimizer], options: dict[str, Any]) -> None:
    def mean(x: Array) -> Array:
        return np.asarray(x.mean((1, 2), keepdims=True))

    def largest(x: Array) -> Array:
        return np.asarray(x.max((1, 2), keepdims=True))

    start = torch.randn(3, 4, 2, dtype=torch.float64)
    gradients = torch.randn(12, 3, 4, 2, dtype=torch.float64)
    expected = FORMULAS[ours.__name__](start.numpy(), list(gradients.numpy()), mean, largest, **options)
    tolerance = 1e-6 if ours.__name__ == "NAdam" else 1e-12
    kinds: list[Callable[[Tensor], Any]] = [
        lambda d: d,
        lambda d: d.to_sparse(1),
        lambda d: d.to_sparse(2),
        lambda d: d.to_sparse(),
        lambda d: masked(d, torch.ones(d.shape, dtype=torch.bool)),
    ]
    for kind in kinds:
        p = nn.Parameter(start.clone())
        optimizer = ours([p], state="row", **options)
        for gradient in gradients:
            attach_gradient(p, kind(gradient))
            optimizer.step()
        torch.testing.assert_close(p.detach(), torch.from_numpy(expected), rtol=tolerance, atol=tolerance)


def test_the_average_of_asgd_is_that_of_the_arrivals() -> None:
    from maskgrad.optim import ASGD

    p = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = ASGD([p], lr=0.1, lambd=0.0, t0=2)
    arrivals = []
    for _ in range(7):
        p.grad = torch.randn(2, dtype=torch.float64)
        optimizer.step()
        arrivals.append(p.detach().clone())
    # Steps 1 to 4 replace the average, step 5 is the first to be averaged with the one before it.
    torch.testing.assert_close(
        optimizer.state[p]["ax"], torch.stack(arrivals[3:]).mean(0), rtol=1e-6, atol=1e-6
    )
