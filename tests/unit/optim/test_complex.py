"""Complex parameters: torch's results on dense gradients, and the same for every kind of gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskgrad import attach_gradient
from maskgrad.masked_tensor import masked
from maskgrad.optim.optimizer import MaskedOptimizer
from tests.unit.optim.optimizers import every_optimizer

KINDS: dict[str, Callable[[Tensor], Any]] = {
    "dense": lambda d: d,
    "rows": lambda d: d.to_sparse(1),
    "entries": lambda d: d.to_sparse(),
    "csr": lambda d: d.to_sparse_csr(),
    "masked": lambda d: masked(d, torch.ones(d.shape, dtype=torch.bool)),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@every_optimizer
def test_complex_parameters_follow_torch(
    kind: Callable[[Tensor], Any],
    ours: type[MaskedOptimizer],
    theirs: type[torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    start = torch.randn(3, 2, dtype=torch.complex64)
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    a, b = ours([p], **options), theirs([q], **options)
    for gradient in torch.randn(6, 3, 2, dtype=torch.complex64):
        attach_gradient(p, kind(gradient))
        q.grad = gradient.clone()
        a.step()
        b.step()
    torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    for key, value in b.state[q].items():
        if value is not None and value.dim() > 0 and "max" not in key:
            torch.testing.assert_close(a.state[p][key], value, rtol=1e-4, atol=1e-5)
