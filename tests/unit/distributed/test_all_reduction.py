"""Tensors and gradients of every kind added up over the ranks, against dense sums and unions of masks."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.distributed import reduction_plan
from tests.ranks import run_on_ranks
from tests.unit.distributed.kinds_of_gradients import KINDS, SHAPE, gradient, meaning_of

DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.complex64)
PAIRS = (("dense", "rows"), ("rows", "rows"), ("mask", "rows"), ("csr", "csr"), ("dense", "dense"))
Case = tuple[tuple[str, ...], torch.dtype]

#: More gradients than a first message tells of.
CASES: dict[int, list[Case]] = {
    2: [
        *((kinds, torch.float32) for kinds in itertools.product(KINDS, repeat=2)),
        *itertools.product(PAIRS, DTYPES),
    ],
    4: [
        (("empty rows", "rows", "empty rows", "empty rows"), torch.float16),
        (("csr", "csr", "csr", "csr"), torch.float64),
        (("mask", "nothing specified", "rows", "masked bsr"), torch.bfloat16),
    ],
}


def kind_of(gradient: Any) -> str:
    if gradient is None:
        return "none"
    masked = "masked " if isinstance(gradient, mg.MaskedTensor) else ""
    return masked + str(gradient.layout).removeprefix("torch.")


def give(param: Tensor, value: Any) -> None:
    """Put a gradient where users put it: in ``.grad`` if that can hold it."""
    if isinstance(value, Tensor) and value.layout in (torch.strided, torch.sparse_coo):
        param.grad = value
    else:
        mg.attach_gradient(param, value)


def _reduced(rank: int, world_size: int, cases: list[Case], op: Any, way: str) -> list[Any]:
    params = [nn.Parameter(torch.zeros(SHAPE, dtype=dtype)) for _, dtype in cases]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduction_plan, "_lists_are_shorter", lambda *_: way == "lists")
        for param, (kinds, dtype) in zip(params, cases, strict=True):
            give(param, gradient(kinds[rank], rank, dtype)[0])
        mg.distributed.all_reduce_gradients(params, op=op)
    found = [mg.optim.attached_gradient(param) for param in params]
    for param, one in zip(params, found, strict=True):
        assert (one is param.grad) == (kind_of(one) in ("none", "strided", "sparse_coo"))
    meanings = [meaning_of(one) for one in found]
    return [
        (kind_of(one), meaning and (one.dtype, *(part.tolist() for part in meaning)))
        for one, meaning in zip(found, meanings, strict=True)
    ]


def expected_kind(kinds: tuple[str, ...]) -> str:
    """A sum is as sparse as its operands allow, and masked if it specifies no more than they do."""
    if set(kinds) == {"none"}:
        return "none"
    if "dense" in kinds:
        return "strided"
    if {"mask", "nothing specified"} & {*kinds}:
        return "masked strided"
    return "masked sparse_coo" if any(kind.startswith("masked") for kind in kinds) else "sparse_coo"


@pytest.mark.parametrize(("op", "way"), [("sum", "lists"), ("avg", "whole"), ("avg", "lists")])
@pytest.mark.parametrize("world_size", CASES)
def test_what_is_specified_on_any_rank_is_added_up(world_size: int, op: str, way: str) -> None:
    cases = CASES[world_size]
    answers = run_on_ranks(_reduced, world_size, cases, op, way)
    for answer in answers[1:]:
        assert answer == answers[0]  # bit for bit
    for (kinds, dtype), (kind, found) in zip(cases, answers[0], strict=True):
        assert kind == expected_kind(kinds), kinds
        if kind == "none":
            continue
        meanings = [gradient(one, rank, dtype)[1] for rank, one in enumerate(kinds)]
        total = torch.stack([m.values for m in meanings]).sum(0) / (world_size if op == "avg" else 1)
        mask = torch.stack([m.mask for m in meanings]).any(0)
        assert found[0] is dtype
        assert torch.equal(torch.tensor(found[1], dtype=dtype), total.to(dtype)), kinds
        assert torch.equal(torch.tensor(found[2]), mask), kinds


def _bytes_sent(rank: int, world_size: int, rows: list[int], height: int) -> list[int]:
    """What the values and indices of a sum take up, gathered or added up; each rank has so many rows of a table."""
    at = torch.arange(rows[rank])[None]
    x = torch.sparse_coo_tensor(at, torch.ones(rows[rank], 8), (height, 8), check_invariants=True)
    spies = [
        mock.patch.object(torch.distributed, name, wraps=getattr(torch.distributed, name))
        for name in ("all_gather", "all_reduce")
    ]
    with spies[0] as gather, spies[1] as add:
        total = mg.distributed.all_reduce(x)
    assert total.is_sparse
    assert total.values().sum() == sum(rows) * 8
    sent = [call.args[1] for call in gather.call_args_list], [call.args[0] for call in add.call_args_list]
    return [sum(t.nbytes for t in some if t.dtype is not torch.int64) for some in sent]


def test_few_rows_travel_as_rows_and_many_as_a_whole() -> None:
    # three int32 numbers, filled up to 16 bytes, and three rows
    assert run_on_ranks(_bytes_sent, 2, [3, 0], 1000) == [[16 + 3 * 32, 0]] * 2
    assert run_on_ranks(_bytes_sent, 4, [90] * 4, 100) == [[0, 100 * 8 * 4 + 100 * 4]] * 4


def _other_dtypes_and_sizes(rank: int, world_size: int) -> None:
    number, half = torch.tensor(7), torch.full((1, 1), 40000.0, dtype=torch.float16)
    empty = torch.zeros(1, 0, dtype=torch.int64)
    for x, op, dtype, total in [
        (torch.tensor([250, 1], dtype=torch.uint8), "sum", torch.uint8, [244, 2]),
        (torch.tensor([True, rank == 0]), "sum", torch.int64, [2, 1]),
        (torch.tensor([1 + 2j, 3j]).conj(), "sum", torch.complex64, [2 - 4j, -6j]),
        (torch.sparse_coo_tensor([[0]], torch.tensor([3j]), (1,)).conj(), "sum", torch.complex64, [-6j]),
        (number, "sum", torch.int64, 14),
        (torch.zeros(0, 3), "sum", torch.float32, []),
        (torch.sparse_coo_tensor(empty, torch.zeros(0, 0), (3, 0)), "sum", torch.float32, [[]] * 3),
        (torch.sparse_coo_tensor(torch.zeros(0, 2), [1, 2], ()), "sum", torch.int64, 6),
        (half, "avg", torch.float16, [[40000.0]]),  # the sum is more than a half can be
        (torch.sparse_coo_tensor([[1]], half, (2, 1)), "avg", torch.float16, [[0.0], [40000.0]]),
    ]:
        found = mg.distributed.all_reduce(x, op)
        assert (found.dtype, found.to_dense().tolist()) == (dtype, total)
    assert number.item() == 7  # left as it is


def _gradients_in_place(rank: int, world_size: int) -> None:
    p = nn.Parameter(torch.ones(3))
    p.grad = held_elsewhere = torch.full((3,), float(rank))
    mg.distributed.all_reduce_gradients(p)
    assert p.grad is held_elsewhere
    assert held_elsewhere.tolist() == [0.5, 0.5, 0.5]
    # two results of one message do not share memory
    q, r = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    if rank:
        q.grad, r.grad = torch.ones(3), torch.ones(2)
    mg.distributed.all_reduce_gradients([q, r, q], op="sum")
    assert q.grad is not None
    assert r.grad is not None
    assert q.grad.untyped_storage().data_ptr() != r.grad.untyped_storage().data_ptr()
    assert (q.grad.tolist(), r.grad.tolist()) == ([1.0] * 3, [1.0] * 2)
    x = mg.masked(torch.ones(2, 2), torch.eye(2).bool())
    for leaf in (x.detach().requires_grad_(), x.to_sparse().detach().requires_grad_()):
        (leaf * (rank + 1)).sum().backward()
        mg.distributed.all_reduce_gradients(leaf)
        assert leaf.grad.to_dense().tolist() == [[1.5, None], [None, 1.5]]


@pytest.mark.parametrize("program", [_other_dtypes_and_sizes, _gradients_in_place])
def test_on_two_ranks(program: Any) -> None:
    run_on_ranks(program, 2)


def _groups(rank: int, world_size: int) -> float | None:
    pairs = [torch.distributed.new_group([0, 3]), torch.distributed.new_group([2, 1])]
    x = torch.tensor(float(rank))
    with pytest.raises(ValueError, match="not in the process group"):
        mg.distributed.all_reduce(x, group=pairs[rank not in (1, 2)])
    return mg.distributed.all_reduce(x, group=pairs[rank in (1, 2)]).item()


def test_groups_of_some_ranks() -> None:
    assert run_on_ranks(_groups, 4) == [3.0, 3.0, 3.0, 3.0]


def test_a_process_group_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        mg.distributed.all_reduce(torch.ones(2))
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="missing in this build of PyTorch"):
        mg.distributed.all_reduce(torch.ones(2))
