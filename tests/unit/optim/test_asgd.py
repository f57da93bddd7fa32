"""What is peculiar to ASGD: the average of where it has been."""

from __future__ import annotations

import torch
from torch import nn

from maskgrad.optim import ASGD


def test_the_average_is_that_of_the_arrivals() -> None:
    p = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = ASGD([p], lr=0.1, lambd=0.0, t0=2)
    arrivals = []
    for _ in range(7):
        p.grad = torch.randn(2, dtype=torch.float64)
        optimizer.step()
        arrivals.append(p.detach().clone())
    # Steps 1 to 4 replace the average, step 5 is the first to be averaged with the one before it.
    expected = torch.stack(arrivals[3:]).mean(0)
    torch.testing.assert_close(optimizer.state[p]["ax"], expected, rtol=1e-6, atol=1e-6)
