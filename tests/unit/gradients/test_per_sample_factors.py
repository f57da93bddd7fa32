"""Norms and sums of factors equal those of the gradients they stand for; garbage of samples left out is gone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from maskgrad.gradients.per_sample_factors import (
    Full,
    Outer,
    Rows,
    SampleGradients,
    joined,
)

D = torch.float64
B = 4


def rows(sparse: bool = True, number: int = 9) -> Rows:
    samples, at = torch.randint(B, (number,)), torch.randint(5, (number,))
    return Rows(samples, at, torch.randn(number, 3, dtype=D), B, (5, 3), sparse)


def outer(positions: int, inputs: int = 3, outputs: int = 5, dtype: torch.dtype = D) -> Outer:
    return Outer(
        torch.randn(B, positions, inputs, dtype=dtype), torch.randn(B, positions, outputs, dtype=dtype)
    )


CASES = {
    "full": lambda: Full(torch.randn(B, 2, 3, dtype=D)),
    "full, a number": lambda: Full(torch.randn(B, dtype=D)),
    "full, nothing": lambda: Full(torch.randn(B, 0, 3, dtype=D)),
    "outer, one position": lambda: outer(1),
    "outer, few positions": lambda: outer(2, 7, 9),
    "outer, many positions": lambda: outer(40),
    "outer, no position": lambda: outer(0),
    "outer, complex": lambda: outer(2, 7, 9, torch.complex128),
    "outer, complex, many": lambda: outer(40, dtype=torch.complex128),
    "rows": rows,
    "rows, dense": lambda: rows(False),
    "rows, none": lambda: rows(number=0),
    "joined, outer": lambda: joined([outer(2), outer(3)]),
    "joined, rows": lambda: joined([rows(), rows()]),
    "joined, rows and a linear map": lambda: joined([rows(), outer(2, 3, 5)]),
}


def dense(part: SampleGradients) -> Tensor:
    return part.gradients().to_dense()


@pytest.mark.parametrize("name", CASES)
def test_norms_and_sums_are_those_of_the_gradients(name: str) -> None:
    part = CASES[name]()
    gradients = dense(part)
    squares = gradients.abs().square().reshape(B, -1).sum(1) if gradients.numel() else torch.zeros(B, dtype=D)
    torch.testing.assert_close(part.squared_norms(), squares)
    weights = torch.rand(B, dtype=D)
    summed = part.weighted_sum(weights)
    expected = torch.einsum("b,b...->...", weights.to(gradients.dtype), gradients)
    torch.testing.assert_close(summed.to_dense(), expected)
    assert (summed.layout is torch.sparse_coo) == (part.gradients().layout is torch.sparse_coo)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e38])
def test_samples_left_out_are_zero_whatever_they_hold(name: str, garbage: float) -> None:
    part = CASES[name]()
    expected = dense(part).clone()
    out = torch.tensor([False, True, False, False])
    expected[1] = 0
    for attribute in ("values", "inputs", "cotangents"):
        factor = getattr(part, attribute, None)
        if factor is None:
            continue
        if isinstance(part, Rows):
            factor[part.samples == 1] = garbage
        else:
            factor[1] = garbage
    left = part.without(out)
    torch.testing.assert_close(dense(left), expected)
    assert left.squared_norms()[1] == 0
    assert left.weighted_sum(torch.ones(B, dtype=D)).to_dense().isfinite().all()


def test_outer_products_are_what_they_say() -> None:
    part = outer(3)
    torch.testing.assert_close(part.gradients(), torch.einsum("bpo,bpi->boi", part.cotangents, part.inputs))


def test_halves_are_added_in_float32() -> None:
    ones = torch.ones(1, 4096, 1, dtype=torch.float16)
    assert Full(ones[:, :, 0]).squared_norms() == 4096
    assert Outer(ones, ones).squared_norms() == 4096.0**2
    at = torch.zeros(4096, dtype=torch.long)
    part = Rows(at, at, ones[0], 1, (1, 1), True)
    assert part.gradients().to_dense().item() == 4096
    assert Rows(at, at, ones[0], 1, (1, 1), False).gradients().item() == 4096
    weights = torch.ones(1)
    assert part.weighted_sum(weights).to_dense().item() == 4096


def test_the_interface_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        SampleGradients()  # type: ignore[abstract]
