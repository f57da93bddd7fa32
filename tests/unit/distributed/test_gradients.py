"""Gradients averaged over ranks: where each kind ends up, and that nothing is changed when a rank refuses."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks
from tests.unit.distributed.kinds_of_gradients import (
    KINDS,
    SHAPE,
    fix_the_way,
    gradient,
    kind_of,
    meaning_of,
)


def give(param: Tensor, value: Any) -> None:
    """Put a gradient where users put it: in ``.grad`` if that can hold it."""
    if isinstance(value, Tensor) and value.layout in (torch.strided, torch.sparse_coo):
        param.grad = value
    else:
        mg.attach_gradient(param, value)


def held(param: Tensor) -> tuple[str, Any]:
    """Where the gradient is, and it."""
    gradient = mg.optim.attached_gradient(param)
    return ".grad" if gradient is param.grad else "attached", gradient


def _averaged(rank: int, world_size: int, pairs: list[tuple[str, str]], way: str) -> list[Any]:
    params = [nn.Parameter(torch.zeros(SHAPE)) for _ in pairs]
    for param, kinds in zip(params, pairs, strict=True):
        give(param, gradient(kinds[rank], rank)[0])
    with pytest.MonkeyPatch.context() as patch:
        fix_the_way(patch, way)
        mg.distributed.all_reduce_gradients(params)
    found = []
    for param in params:
        place, value = held(param)
        meaning = meaning_of(value)
        found.append(
            (place, kind_of(value), None if meaning is None else [part.tolist() for part in meaning])
        )
    return found


@pytest.mark.parametrize("way", ["fewer bytes", "whole"])
def test_every_pair_of_kinds_in_one_call(way: str) -> None:
    pairs = list(itertools.product(KINDS, repeat=2))  # more parameters than the first message tells of
    first, second = run_on_ranks(_averaged, 2, pairs, way)
    assert first == second
    for kinds, (place, kind, meaning) in zip(pairs, first, strict=True):
        a, b = (gradient(name, rank)[1] for rank, name in enumerate(kinds))
        if kinds == ("none", "none"):
            assert (place, kind, meaning) == (".grad", "none", None)
            continue
        mask = a.mask | b.mask
        assert torch.tensor(meaning[1]).equal(mask), kinds
        assert torch.tensor(meaning[0]).equal(((a.values + b.values) / 2).float()), kinds
        assert (place == ".grad") == (kind in ("strided", "sparse_coo")), kinds


def _in_place(rank: int, world_size: int) -> None:
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.full((3,), float(rank))
    held_elsewhere = p.grad
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


def _halves(rank: int, world_size: int) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        p, q = nn.Parameter(torch.zeros(3, 1, dtype=dtype)), nn.Parameter(torch.zeros(2, dtype=dtype))
        p.grad = torch.sparse_coo_tensor([[1]], torch.full((1, 1), 40000.0, dtype=dtype), (3, 1))
        q.grad = torch.full((2,), 40000.0, dtype=dtype)
        mg.distributed.all_reduce_gradients([p, q])
        assert p.grad.dtype is q.grad.dtype is dtype
        at_most_rounded = torch.tensor(40000.0).to(dtype)
        assert p.grad.values().item() == at_most_rounded
        assert q.grad.tolist() == [at_most_rounded] * 2
    torch.distributed.barrier()  # nothing is left broken behind


def _float32_gradients_of_half_parameters(rank: int, world_size: int) -> None:
    p = nn.Parameter(torch.zeros(2, dtype=torch.float16))
    if not hasattr(p, "grad_dtype"):
        return
    p.grad_dtype = torch.float32
    if rank:
        p.grad = torch.full((2,), 1e6)
    mg.distributed.all_reduce_gradients([p])
    assert p.grad is not None
    assert p.grad.dtype is torch.float32
    assert p.grad.tolist() == [5e5, 5e5]


def _masked_leaves(rank: int, world_size: int) -> None:
    x = mg.masked(torch.ones(3), torch.tensor([True, True, False])).requires_grad_()
    (x * (rank + 1)).sum().backward()
    mg.distributed.all_reduce_gradients([x])
    assert x.grad.tolist() == [1.5, 1.5, None]
    y = mg.masked(torch.ones(2, 2), torch.eye(2).bool()).to_sparse().detach().requires_grad_()
    (y * (rank + 1)).sum().backward()
    mg.distributed.all_reduce_gradients(y)
    assert y.grad.to_dense().tolist() == [[1.5, None], [None, 1.5]]


def _groups(rank: int, world_size: int) -> float | None:
    pairs = [torch.distributed.new_group([0, 3]), torch.distributed.new_group([2, 1])]
    mine = pairs[rank in (1, 2)]
    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.full((2,), float(rank))
    mg.distributed.all_reduce_gradients([p], group=mine, op="sum")
    x = torch.sparse_coo_tensor([[0]], [float(rank)], (9,), check_invariants=True)
    few = x if rank in (0, 1) else torch.sparse_coo_tensor(torch.zeros(1, 0), [], (9,), check_invariants=True)
    total = mg.distributed.all_reduce(few, "sum", mine)
    assert total.to_dense()[0] == (0 if rank in (0, 3) else 1)
    with pytest.raises(ValueError, match="not in the process group"):
        mg.distributed.all_reduce(p.detach(), group=pairs[rank not in (1, 2)])
    return p.grad[0].item()


@pytest.mark.parametrize(
    "program", [_in_place, _halves, _float32_gradients_of_half_parameters, _masked_leaves]
)
def test_on_two_ranks(program: Any) -> None:
    run_on_ranks(program, 2)


def test_groups_of_some_ranks() -> None:
    assert run_on_ranks(_groups, 4) == [3.0, 3.0, 3.0, 3.0]


def _refused(rank: int, world_size: int, name: str) -> tuple[str, str]:
    p, q = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    p.grad = torch.full((3,), float(rank))
    q.grad = torch.full((3,), float(rank))
    given: Any = [p, q]
    if name == "two gradients" and rank:
        q._maskgrad_gradient = mg.masked(torch.ones(3))  # type: ignore[attr-defined]  # as on PyTorch/XLA
    if name == "index" and rank:
        q.grad = torch.sparse_coo_tensor([[-1]], [1.0], (3,), check_invariants=False)
    if name == "fewer" and rank:
        given = [p]
    if name == "shape" and rank:
        given = [p, nn.Parameter(torch.zeros(2))]
    if name == "dtype" and not rank:
        given = [p, nn.Parameter(torch.zeros(3, dtype=torch.float64))]
    if name == "set":
        given = {p, q}
    if name == "number":
        given = [p, 3.0]
    try:
        mg.distributed.all_reduce_gradients(given)
    except Exception as error:
        found = type(error).__name__, str(error)
    assert p.grad.tolist() == [float(rank)] * 3  # unchanged
    return found


@pytest.mark.parametrize(
    ("name", "kind", "word"),
    [
        ("two gradients", "ValueError", "only one is allowed"),
        ("index", "IndexError", "index -1"),
        ("fewer", "ValueError", "nothing more|of 2 tensors"),
        ("shape", "ValueError", r"\(2,\)"),
        ("dtype", "ValueError", "torch.float64"),
        ("set", "TypeError", "the same order"),
        ("number", "TypeError", "found float"),
    ],
)
def test_all_ranks_refuse_and_nothing_is_changed(name: str, kind: str, word: str) -> None:
    for found_kind, text in run_on_ranks(_refused, 2, name):
        assert found_kind == kind
        assert re.search(word, text), text
