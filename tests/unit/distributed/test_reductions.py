"""Reductions over the specified entries of all ranks, against one process that has all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.ranks import run_on_ranks

GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e38)
Case = tuple[str, str, Any, torch.dtype]
CASES: dict[int, list[Case]] = {
    2: [
        *(
            (function, case, dim, torch.float32)
            for function in ("sum", "mean")
            for case in ("uneven", "empty", "nothing", "masked away")
            for dim in (None, 0)
        ),
        *(("mean", "uneven", 0, dtype) for dtype in (torch.float64, torch.float16)),
    ],
    4: [("mean", "uneven", 0, torch.float32), ("sum", "empty", None, torch.float64)],
}


def part(case: str, rank: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values with garbage where nothing is specified, and the mask, of one rank."""
    draw = torch.Generator().manual_seed(7 + rank)
    rows = {"uneven": 3 + 2 * rank, "empty": 0 if rank else 4, "nothing": 3, "masked away": 3}[case]
    values = torch.randn(rows, 4, generator=draw, dtype=torch.float64).to(dtype)
    mask = torch.rand(rows, 4, generator=draw) < 0.6
    mask[:, 3] = rank == 0  # a column that few have
    if case == "nothing" or (case == "masked away" and rank == 1):
        mask = torch.zeros_like(mask)
    garbage = torch.tensor(GARBAGE).repeat(rows).reshape(rows, 4).to(dtype)
    return torch.where(mask, values, garbage), mask


def _reduced(rank: int, world_size: int, cases: list[Case]) -> list[Any]:
    found = []
    for function, case, dim, dtype in cases:
        values, mask = part(case, rank, dtype)
        x = mg.masked(values.requires_grad_(), mask)
        with torch.autograd.set_detect_anomaly(True):
            result = getattr(mg.distributed, function)(x, dim)
            (result.float() * 3).sum().backward()
        specified = None if type(result) is Tensor else result.mask  # a number
        number = result if specified is None else result.filled(0)
        found.append((specified, number.detach(), values.grad, mg.distributed.count(x.detach(), dim)))
    return found


@pytest.mark.parametrize("world_size", CASES)
def test_as_one_process_forward_and_backward(world_size: int) -> None:
    cases = CASES[world_size]
    answers = run_on_ranks(_reduced, world_size, cases)
    for (function, case, dim, dtype), *found in zip(cases, *answers, strict=True):
        parts = [part(case, rank, dtype) for rank in range(world_size)]
        values, mask = (torch.cat(some) for some in zip(*parts, strict=True))
        leaf = values.double().requires_grad_()
        expected = getattr(mg.masked(leaf, mask), function)(dim)
        (expected * 3).sum().backward()
        tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-6}
        wanted = expected.detach() if dim is None else expected.detach().filled(0)
        for specified, one, _, number in found:
            assert (specified is None) == (dim is None)
            assert specified is None or torch.equal(specified, mask.any(dim)), (function, case)
            assert torch.equal(number, mask.sum(dim))
            torch.testing.assert_close(one, wanted.to(dtype), equal_nan=True, **tolerance)
        slopes = torch.cat([slope for *_, slope, _ in found])
        assert (slopes[~mask] == 0).all()
        torch.testing.assert_close(slopes.double(), leaf.grad * world_size, **tolerance)


def _other_arguments(rank: int, world_size: int) -> None:
    d = mg.distributed
    x = torch.arange(4.0).reshape(2, 2) + 10 * rank
    assert d.sum(x).item() == 52.0
    assert d.mean(x, 1, keepdim=True).tolist() == [[5.5], [7.5]]
    assert d.sum(torch.tensor([True, False])).item() == 2
    assert d.sum(mg.masked(torch.tensor([7, 9]), torch.tensor([rank == 0, False]))).item() == 7
    assert d.mean(torch.zeros(0)).isnan()
    assert d.mean(torch.tensor([1 + 2j, 3 - 1j])).item() == 2 + 0.5j
    stored = mg.masked(x, torch.tensor([[True, False], [False, True]])).to_sparse(torch.sparse_csr)
    assert d.mean(stored).item() == 6.5
    assert d.mean(stored, 0).tolist() == [5.0, 8.0]
    assert d.count(stored, 1).tolist() == [2, 2]
    # a second derivative, through sums over ranks in the backward pass
    leaf = (torch.tensor([1.0, 2.0]) + rank).double().requires_grad_()
    y = d.mean(leaf) ** 3 / 2  # each of two ranks computes it
    (slope,) = torch.autograd.grad(y, leaf, create_graph=True)
    assert slope.tolist() == [3 * 4.0 / 4] * 2  # of m^3, which both ranks add up to, at the mean 2
    (curvature,) = torch.autograd.grad(slope.sum(), leaf)
    torch.testing.assert_close(curvature, torch.full((2,), 6 * 2 / 4, dtype=torch.float64))
    # a rank without a graph takes part in the backward pass, which leaves its incoming gradient alone
    w, gradient = torch.tensor([2.0], requires_grad=True), torch.tensor(3.0)
    d.sum(torch.zeros(0) if rank else w * torch.ones(3)).backward(gradient)
    assert rank or w.grad.item() == 18.0
    assert gradient == 3.0


def test_other_arguments() -> None:
    run_on_ranks(_other_arguments, 2)
