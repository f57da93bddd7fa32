"""masked_extremum: what the laws do not draw."""

from __future__ import annotations

import pytest
import torch

from maskgrad import kernels
from tests.unit.kernels.masks import soiled
from tests.unit.kernels.suite import GARBAGE, inf


def test_complex_numbers_have_none() -> None:
    values, mask = torch.ones(3, dtype=torch.complex64), torch.ones(3, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="extrema are not defined for complex"):
        kernels.masked_extremum(values, mask, (0,), False, True)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_an_infinite_winner_shares_with_nobody_under_the_mask(largest: bool, garbage: float) -> None:
    """Under the mask lies what never wins, which is the winner here; PyTorch's own derivative would count it."""
    worst = -inf if largest else inf
    mask = torch.tensor([[True, False, False], [True, True, False], [True, True, True], [False] * 3])
    rows = torch.tensor([[worst, 5, 5], [worst, worst, 5], [1.0, 2, 2], [0, 0, 0]])
    x = soiled(rows, mask, garbage).requires_grad_()
    best, present = kernels.masked_extremum(x, mask, (1,), False, largest)
    assert present.tolist() == mask.any(1).tolist()
    (slope,) = torch.autograd.grad(best[present].sum(), x)
    half = [0, 0.5, 0.5] if largest else [1, 0, 0]
    assert slope.tolist() == [[1, 0, 0], [0.5, 0.5, 0], half, [0, 0, 0]]


def test_integers_beyond_floats_are_told_apart() -> None:
    values, mask = torch.tensor([[2**62 + 1, 2**62, 3]]), torch.tensor([[True, True, False]])
    assert kernels.masked_extremum(values, mask, (1,), False, True)[0].item() == 2**62 + 1
    assert kernels.masked_extremum(values, mask, (1,), False, False)[0].item() == 2**62
