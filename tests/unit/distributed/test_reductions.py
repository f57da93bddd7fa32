"""Reductions over the specified entries of all ranks, against one process that has all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.ranks import run_on_ranks

GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e38)
FUNCTIONS = ("sum", "mean")


def part(case: str, rank: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values with garbage where nothing is specified, and the mask, of one rank."""
    draw = torch.Generator().manual_seed(7 + rank)
    rows = {"uneven": 3 + 2 * rank, "empty": 0 if rank else 4, "nothing": 3, "masked away": 3}[case]
    values = torch.randn(rows, 4, generator=draw, dtype=torch.float64).to(dtype)
    mask = torch.rand(rows, 4, generator=draw) < 0.6
    mask[:, 3] = rank == 0 and case != "nothing"  # a column that few have
    if case == "nothing" or (case == "masked away" and rank == 1):
        mask = torch.zeros_like(mask)
    garbage = torch.tensor(GARBAGE).repeat(rows).reshape(rows, 4).to(dtype)
    return torch.where(mask, values, garbage), mask


def together(case: str, world_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    parts = [part(case, rank, dtype) for rank in range(world_size)]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


Case = tuple[str, str, Any, torch.dtype]


def _reduced(rank: int, world_size: int, cases: list[Case]) -> list[Any]:
    found = []
    for function, case, dim, dtype in cases:
        values, mask = part(case, rank, dtype)
        leaf = values.requires_grad_()
        with torch.autograd.set_detect_anomaly(True):
            result = getattr(mg.distributed, function)(mg.masked(leaf, mask), dim)
            (result.float() * 3).sum().backward()
        plain = mg.distributed.count(mg.masked(values.detach(), mask), dim)
        if dim is None:
            assert type(result) is Tensor  # a number
            found.append((None, result.detach(), leaf.grad, plain))
        else:
            found.append((result.mask, result.detach().filled(0), leaf.grad, plain))
    return found


def _check(world_size: int, cases: list[Case]) -> None:
    answers = run_on_ranks(_reduced, world_size, cases)
    for number, (function, case, dim, dtype) in enumerate(cases):
        values, mask = together(case, world_size, dtype)
        leaf = values.double().requires_grad_()
        whole = mg.masked(leaf, mask)
        expected = getattr(whole, function)(dim)
        specified = mask.any(dim) if dim is not None else mask.any()
        (expected * 3).sum().backward()
        tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-6}
        slopes = []
        for found_mask, found, slope, plain in (answer[number] for answer in answers):
            assert dim is None or torch.equal(found_mask, specified), (function, case)
            assert torch.equal(plain, mask.sum(dim))
            assert found.dtype is dtype
            wanted = expected.detach() if dim is None else expected.detach().filled(0)
            torch.testing.assert_close(found, wanted.to(dtype), equal_nan=True, **tolerance)
            slopes.append(slope)
        slope = torch.cat(slopes)
        assert (slope[~mask] == 0).all()
        torch.testing.assert_close(slope.double(), leaf.grad * world_size, **tolerance)


def test_as_one_process_forward_and_backward() -> None:
    cases = [
        (function, case, dim, torch.float32)
        for function in FUNCTIONS
        for case in ("uneven", "empty", "nothing", "masked away")
        for dim in (None, 0)
    ]
    cases += [("mean", "uneven", 0, dtype) for dtype in (torch.float64, torch.float16, torch.bfloat16)]
    _check(2, cases)


def test_four_ranks() -> None:
    _check(4, [("mean", "uneven", 0, torch.float32), ("sum", "empty", None, torch.float64)])


def _other_arguments(rank: int, world_size: int) -> None:
    d = mg.distributed
    x = torch.arange(4.0).reshape(2, 2) + 10 * rank
    assert d.sum(x).item() == 52.0
    assert d.mean(x, 1, keepdim=True).tolist() == [[5.5], [7.5]]
    assert d.sum(torch.tensor([True, False])).item() == 2
    assert d.sum(mg.masked(torch.tensor([7, 9]), torch.tensor([rank == 0, False]))).item() == 7
    assert d.mean(torch.zeros(0)).isnan()
    assert d.mean(torch.tensor([1 + 2j, 3 - 1j])).item() == 2 + 0.5j
    centred = x - d.mean(x)  # the variance of all ranks
    expected = torch.cat([x - 10 * rank, x - 10 * rank + 10]).var(correction=0)
    torch.testing.assert_close(d.mean(centred**2), expected)
    for layout in (torch.sparse_coo, torch.sparse_csr):
        stored = mg.masked(x, torch.tensor([[True, False], [False, True]])).to_sparse(layout)
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


def _one_rank_has_no_graph(rank: int, world_size: int) -> list[float]:
    w = torch.tensor([2.0], requires_grad=True)
    x = w * torch.ones(3) if rank == 0 else torch.zeros(0)
    loss = mg.distributed.mean(x)
    loss.backward()
    return [loss.item(), 0.0 if w.grad is None else w.grad.item()]


@pytest.mark.parametrize("program", [_other_arguments])
def test_on_two_ranks(program: Any) -> None:
    run_on_ranks(program, 2)


def test_a_rank_without_a_graph_takes_part_in_the_backward_pass() -> None:
    assert run_on_ranks(_one_rank_has_no_graph, 2) == [[2.0, 2.0], [2.0, 0.0]]


def _refused(rank: int, world_size: int, name: str) -> tuple[str, str]:
    d = mg.distributed
    calls: dict[str, Any] = {
        "list": lambda: d.mean([1.0] if rank else torch.ones(1)),
        "sparse": lambda: d.sum(torch.eye(2).to_sparse()),
        "integers": lambda: d.mean(torch.tensor([1])),
        "dim": lambda: d.mean(torch.ones(2), 5 * rank),
        "shape": lambda: d.mean(torch.ones(2, 3 + rank), 0),
        "functions": lambda: d.mean(torch.ones(2)) if rank else d.sum(torch.ones(2)),
    }
    try:
        calls[name]()
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("not refused")


@pytest.mark.parametrize(
    ("name", "kind", "word"),
    [
        ("list", "TypeError", "found list"),
        ("sparse", "TypeError", "mg.from_sparse"),
        ("integers", "TypeError", "torch.int64"),
        ("dim", "IndexError", "out of range"),
        ("shape", "ValueError", "(3,)"),
        ("functions", "ValueError", "sum of"),
    ],
)
def test_all_ranks_refuse(name: str, kind: str, word: str) -> None:
    for found, text in run_on_ranks(_refused, 2, name):
        assert found == kind, text
        assert word in text
