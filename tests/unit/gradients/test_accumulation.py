"""Accumulated gradients against one backward pass over the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg

NAN = float("nan")
GARBAGE = (NAN, float("inf"), float("-inf"), 1e38)
LENGTH = 4
EXACT = {"rtol": 1e-6, "atol": 1e-6}


class Words(nn.Module):
    """A sparse table and dense layers over sequences; predicts a number for each position."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(11, 6, sparse=True)
        self.hidden = nn.Linear(6, 7)
        self.head = nn.Linear(7, 1)
        self.idle = nn.Linear(2, 2)

    def forward(self, words: Any) -> Any:
        return self.head(torch.tanh(self.hidden(self.table(words))))[..., 0]


def batch(number: int = 9) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(7)
    lengths = torch.randint(0, LENGTH + 1, (number,), generator=draw)
    lengths[:3] = torch.tensor([LENGTH, 0, 1])
    garbage = torch.tensor(GARBAGE).repeat(number * LENGTH)[: number * LENGTH].view(number, LENGTH)
    known = torch.arange(LENGTH) < lengths[:, None]
    return {
        "words": torch.randint(0, 11, (number, LENGTH), generator=draw),
        "scores": torch.where(known, torch.randn(number, LENGTH, generator=draw), garbage),
        "known": known,
        "lengths": lengths,
    }


def part_of(b: dict[str, Tensor], rows: list[int]) -> dict[str, Tensor]:
    return {name: tensor[rows] for name, tensor in b.items()}


def masked_numbers(net: nn.Module, b: dict[str, Tensor]) -> dict[str, Any]:
    return {"losses": F.mse_loss(net(b["words"]), mg.masked(b["scores"], b["known"]), reduction="none")}


def jagged(net: nn.Module, b: dict[str, Tensor]) -> dict[str, Any]:
    words, scores = (
        mg.from_lengths(b[name], b["lengths"], layout=torch.jagged) for name in ("words", "scores")
    )
    return {"losses": F.mse_loss(net(words), scores, reduction="none")}


def plain_with_mask(net: nn.Module, b: dict[str, Tensor]) -> dict[str, Any]:
    return {"losses": (net(b["words"]) - b["scores"].nan_to_num(0, 0, 0)) ** 2, "mask": b["known"]}


LOSSES: dict[str, Callable[[nn.Module, dict[str, Tensor]], dict[str, Any]]] = {
    f.__name__: f for f in (masked_numbers, jagged, plain_with_mask)
}


#: rows in micro-batches, of which some are empty
SPLITS: list[list[list[int]]] = [
    [[*range(9)]],
    [[row] for row in range(9)],
    [[5], [], [3, 0, 8, 1, 7], [], [2, 4, 6]],
]


def dense(net: nn.Module) -> dict[str, Tensor]:
    """The gradients of parameters, 0 where there is none."""
    named = net.named_parameters()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.to_dense().clone() for n, p in named}


def expected(mean: str = "token-mean", positions: int = LENGTH) -> tuple[Tensor, dict[str, Any]]:
    """One process, one backward pass: entry by entry, on what is left when the others are deleted."""
    net, b = Words(), batch()
    known = b["known"] & (torch.arange(LENGTH) < positions)
    rows = zip(net(b["words"]), b["scores"], known, strict=True)
    per_sample = [(answer[some] - score[some]) ** 2 for answer, score, some in rows if some.any()]
    if mean == "token-mean":
        whole = torch.cat(per_sample).mean()
    else:
        whole = torch.stack([losses.mean() for losses in per_sample]).mean()
    whole.backward()
    return whole.detach(), dense(net)


def check(found: dict[str, Tensor], wanted: dict[str, Tensor], **tolerance: float) -> None:
    torch.testing.assert_close(found, wanted, check_dtype=False, **tolerance)


@pytest.mark.parametrize("mean", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("name", LOSSES)
def test_any_split_is_the_whole_batch(name: str, mean: Any) -> None:
    whole, wanted = expected(mean)
    b, net = batch(), Words()
    accumulator = mg.GradientAccumulator(net, mean=mean)
    for parts in SPLITS:
        net.zero_grad()
        for rows in parts:
            accumulator.backward(**LOSSES[name](net, part_of(b, rows)))
        found = accumulator.finish()
        assert not found.requires_grad
        torch.testing.assert_close(found, whole, **EXACT)
        check(dense(net), wanted, **EXACT)
        assert net.table.weight.grad.is_coalesced()


def test_several_losses_have_their_own_denominators() -> None:
    b, net = batch(), Words()
    accumulator = mg.GradientAccumulator(net)
    for rows in SPLITS[2]:
        losses = masked_numbers(net, part_of(b, rows))["losses"]
        first, nothing = losses[:, :2], losses[:, :0]
        accumulator.backward(
            {"main": losses, "first": first if rows else None, "never": nothing}, weights={"first": 0.25}
        )
        assert all(p.grad is None for p in net.parameters())
    means = accumulator.finish()
    assert list(means) == ["first", "main", "never"]
    assert means["never"].isnan()
    (main, by_main), (first, by_first) = expected(), expected(positions=2)
    torch.testing.assert_close((means["main"], means["first"]), (main, first), **EXACT)
    together = {name: g + 0.25 * by_first[name] for name, g in by_main.items()}
    check(dense(net), together, **EXACT)


def test_nothing_anywhere_is_nan_with_a_gradient_of_zero() -> None:
    w, nothing = nn.Parameter(torch.ones(2)), torch.zeros(2).bool()
    accumulator = mg.GradientAccumulator([w])
    accumulator.backward(mg.masked(w * NAN, nothing))
    accumulator.backward(w.sum() * NAN, count=0)
    accumulator.backward(w * NAN, mask=nothing)
    assert accumulator.finish().isnan()
    assert w.grad is None or w.grad.tolist() == [0.0, 0.0]


def test_half_parameters_gather_in_float32_and_do_not_overflow() -> None:
    w, v = (nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in (torch.bfloat16, torch.float16))
    accumulator = mg.GradientAccumulator([w, v])
    for _ in range(300):  # added up in bfloat16 they stop at 256
        accumulator.backward(w.float() * 2, count=4)
    accumulator.backward(torch.ones(300, 2) * v.float() * 400, count=1200)  # 120000 in all
    accumulator.finish()
    assert w.grad.tolist() == [0.25, 0.25]
    assert v.grad.tolist() == [50.0, 50.0]
    assert w.grad.dtype is torch.bfloat16


def test_with_a_scaler() -> None:
    w = nn.Parameter(torch.ones(2))
    scaler = mg.amp.GradScaler("cpu", init_scale=1024.0)
    accumulator = mg.GradientAccumulator([w], scaler=scaler)
    accumulator.backward(w * 3, count=2)
    accumulator.backward(w.sum() * 0, count=1)
    assert accumulator.finish() == 2.0
    assert w.grad.tolist() == [1024.0, 1024.0]
    accumulator.reset()
    accumulator.backward(w, count=2)
    scaler.update(2.0)
    with pytest.raises(
        RuntimeError, match=r"scale went from 1024\.0 to 2\.0.*scaler\.update\(\) after the step"
    ):
        accumulator.finish()


def test_layers_are_frozen_and_trained_again_between_steps() -> None:
    net, x = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)), torch.randn(5, 3)
    accumulator = mg.GradientAccumulator(net)
    for is_trained in (True, False, True):
        net[0].requires_grad_(is_trained)
        trained = [p for p in net.parameters() if p.requires_grad]
        wanted = torch.autograd.grad(net(x).square().mean(), trained)
        for part in x.split(2):
            accumulator.backward(net(part).square().mean(), count=len(part))
        accumulator.finish()
        torch.testing.assert_close([p.grad for p in trained], list(wanted))
        net.zero_grad()
