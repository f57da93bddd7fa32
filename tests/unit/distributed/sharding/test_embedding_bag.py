"""Bags of a table on several ranks are those of torch.nn.EmbeddingBag in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.distributed import ShardedEmbeddingBag
from tests.ranks import run_on_ranks

ROWS, COLUMNS = 13, 3


def inputs(rank: int, with_offsets: bool) -> tuple[Tensor, Tensor | None]:
    """Bags of a rank; an empty one among them, and no index at all on ranks above 1."""
    generator = torch.Generator().manual_seed(rank)
    if with_offsets:
        index = torch.randint(ROWS, (7 if rank < 2 else 0,), generator=generator)
        return index, torch.tensor([0, 2, 2, 5] if rank < 2 else [0, 0])
    return torch.randint(ROWS, (3 if rank < 2 else 0, 4), generator=generator), None


def cases() -> list[dict[str, Any]]:
    return [
        {"mode": mode, "with_offsets": with_offsets, "weighted": weighted, "padding_idx": padding}
        for mode in ("sum", "mean", "max")
        for with_offsets in (False, True)
        for weighted in ((False, True) if mode == "sum" else (False,))
        for padding in (None, 3)
    ]


def one_case(
    rank: int,
    world_size: int,
    dtype: torch.dtype,
    placement: Any,
    mode: str,
    with_offsets: bool,
    weighted: bool,
    padding_idx: int | None,
) -> None:
    whole = torch.randn(ROWS, COLUMNS).to(dtype)
    options: dict[str, Any] = {"freeze": False, "mode": mode, "padding_idx": padding_idx}
    bag = ShardedEmbeddingBag.from_pretrained(whole, **options, placement=placement, gradients="sum")
    one = torch.nn.EmbeddingBag.from_pretrained(whole.clone().double(), **options)
    for peer in range(world_size):
        index, offsets = inputs(peer, with_offsets)
        weights = torch.randint(1, 4, index.shape).double().requires_grad_() if weighted else None
        expected = one(index, offsets, weights)
        step = torch.randint(-2, 3, expected.shape).double()
        if not len(index):
            expected.sum().backward()
        else:
            expected.backward(step)
        if peer == rank:
            own = None if weights is None else weights.detach().to(dtype).requires_grad_()
            found = bag(index, offsets, own)
            torch.testing.assert_close(found.double(), expected.detach(), **tolerance(dtype))
            cotangent, here, there = step, own, weights
    found.backward(cotangent.to(dtype))
    if here is not None and there is not None and here.numel():
        assert here.grad is not None
        assert there.grad is not None
        torch.testing.assert_close(here.grad.double(), there.grad, **tolerance(dtype))
    grad = bag.weight.grad
    assert grad is not None
    assert grad.is_sparse
    assert one.weight.grad is not None
    rows = bag.placement.own_rows()
    wanted = torch.where((rows >= 0)[:, None], one.weight.grad[rows.clamp_min(0)], 0)
    torch.testing.assert_close(grad.to_dense().double(), wanted, **tolerance(dtype))
    if padding_idx is not None:
        assert bag.placement.local_row(padding_idx) not in grad._indices()[0].tolist()


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 0.02, "atol": 0.05} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}


def every_case(rank: int, world_size: int) -> None:
    for number, case in enumerate(cases()):
        placement: Any = ("block", "cyclic", 0)[number % 3]
        for dtype in (torch.float32, torch.bfloat16):
            if case["mode"] == "max" and dtype is torch.bfloat16 and not _max_of_halves_works():
                continue
            one_case(rank, world_size, dtype, placement, **case)


def _max_of_halves_works() -> bool:
    try:
        torch.nn.functional.embedding_bag(
            torch.tensor([[0]]), torch.ones(1, 1, dtype=torch.bfloat16), mode="max"
        )
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("world_size", [2, 4])
def test_bags_and_gradients_are_those_of_one_process(world_size: int) -> None:
    run_on_ranks(every_case, world_size)


def test_one_process_needs_no_group() -> None:
    every_case(0, 1)


def masked_bags(rank: int, world_size: int) -> None:
    whole = torch.randn(ROWS, COLUMNS)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    index = mg.masked(torch.tensor([[1, 10**9, 5], [-7, 3, 3]]), mask & (rank == 0))
    for mode in ("sum", "mean", "max"):
        bag = ShardedEmbeddingBag.from_pretrained(whole, freeze=False, mode=mode, padding_idx=12)
        one = mg.nn.EmbeddingBag.from_pretrained(whole.clone(), freeze=False, mode=mode, padding_idx=12)
        found, expected = bag(index), one(index)
        assert torch.equal(found.mask, expected.mask)
        assert torch.equal(found.filled(0.0), expected.filled(0.0))
        found.sum().backward()
        assert bag.weight.grad is not None
        if world_size == 1:
            expected.sum().backward()
            assert torch.equal(bag.weight.grad.to_dense(), one.weight.grad.to_dense())


def test_masked_indices_belong_to_no_bag() -> None:
    masked_bags(0, 1)
    run_on_ranks(masked_bags, 2)


def refusals(rank: int, world_size: int) -> list[str]:
    bag = ShardedEmbeddingBag(4, 2, mode="mean")
    index, told = torch.tensor([0, 1]), []
    wrong: list[tuple[Any, ...]] = [
        (index,),  # one dimension, no offsets
        (index, torch.tensor([1])),
        (index[None], None, torch.ones(1, 2)),
        (index.float(), torch.tensor([0])),
    ]
    for arguments in wrong:
        with pytest.raises((ValueError, TypeError, RuntimeError)) as error:
            bag(*(arguments if rank == 0 else (index, torch.tensor([0]))))
        told.append(str(error.value))
    assert torch.equal(
        bag(index[None]), bag(index, torch.tensor([0]))
    )  # the ranks still understand each other
    return told


def test_what_pytorch_refuses_is_refused_on_every_rank() -> None:
    here, there = run_on_ranks(refusals, 2)
    assert len(here) == len(there) == 4
    for ours, theirs in zip(here, there, strict=True):
        assert theirs.endswith(f"Error: {ours}")
        assert "rank 0 raised an error, so every rank does; nothing was changed" in theirs
    with pytest.raises(ValueError, match='mode must be "sum", "mean" or "max"; got \'min\''):
        ShardedEmbeddingBag(4, 2, mode="min")
