"""Accumulated gradients against one backward pass over the whole batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg

NAN = float("nan")
GARBAGE = (NAN, float("inf"), float("-inf"), 1e38)
CLASSES, LENGTH = 5, 4


class Words(nn.Module):
    """A sparse table and dense layers over sequences; predicts a class, or a number, for each position."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(11, 6, sparse=True)
        self.hidden = nn.Linear(6, 7)
        self.head = nn.Linear(7, CLASSES)
        self.idle = nn.Linear(2, 2)

    def forward(self, words: Any) -> Any:
        return self.head(torch.tanh(self.hidden(self.table(words))))


def batch(number: int = 9) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(7)
    lengths = torch.randint(0, LENGTH + 1, (number,), generator=draw)
    lengths[:3] = torch.tensor([LENGTH, 0, 1])
    garbage = torch.tensor(GARBAGE).repeat(number * LENGTH)[: number * LENGTH].view(number, LENGTH)
    known = torch.arange(LENGTH) < lengths[:, None]
    return {
        "words": torch.randint(0, 11, (number, LENGTH), generator=draw),
        "labels": torch.randint(0, CLASSES, (number, LENGTH), generator=draw),
        "scores": torch.where(known, torch.randn(number, LENGTH, generator=draw), garbage),
        "known": known,
        "lengths": lengths,
    }


def part_of(b: dict[str, Tensor], rows: list[int]) -> dict[str, Tensor]:
    return {name: tensor[rows] for name, tensor in b.items()}


def masked_classes(net: nn.Module, b: dict[str, Tensor]) -> dict[str, Any]:
    return {
        "losses": F.cross_entropy(
            net(b["words"]).transpose(1, 2), mg.masked(b["labels"], b["known"]), reduction="none"
        )
    }


def masked_numbers(net: nn.Module, b: dict[str, Tensor]) -> dict[str, Any]:
    return {
        "losses": F.mse_loss(net(b["words"])[..., 0], mg.masked(b["scores"], b["known"]), reduction="none")
    }


def jagged(net: nn.Module, b: dict[str, Tensor]) -> dict[str, Any]:
    words = mg.from_lengths(b["words"], b["lengths"], layout=torch.jagged)
    scores = mg.from_lengths(b["scores"], b["lengths"], layout=torch.jagged)
    return {"losses": F.mse_loss(net(words)[..., 0], scores, reduction="none")}


def plain_with_count(net: nn.Module, b: dict[str, Tensor]) -> dict[str, Any]:
    labels = b["labels"].masked_fill(~b["known"], -100)
    losses = F.cross_entropy(net(b["words"]).transpose(1, 2), labels, reduction="none")
    return {"losses": losses, "count": (labels != -100).sum()}


def plain_with_mask(net: nn.Module, b: dict[str, Tensor]) -> dict[str, Any]:
    return {"losses": (net(b["words"])[..., 0] - b["scores"].nan_to_num(0, 0, 0)) ** 2, "mask": b["known"]}


def mean_with_count(net: nn.Module, b: dict[str, Tensor]) -> dict[str, Any]:
    labels = b["labels"].masked_fill(~b["known"], -100)
    mean = F.cross_entropy(net(b["words"]).transpose(1, 2), labels)  # NaN, if all are ignored
    return {"losses": mean, "count": int(b["known"].sum())}


LOSSES: dict[str, Callable[[nn.Module, dict[str, Tensor]], dict[str, Any]]] = {
    f.__name__: f
    for f in (masked_classes, masked_numbers, jagged, plain_with_count, plain_with_mask, mean_with_count)
}


def splits(number: int, seed: int) -> list[list[int]]:
    """Rows in micro-batches, of which some are empty."""
    draw = random.Random(seed)
    parts: list[list[int]] = [[] for _ in range(5)]
    for row in range(number):
        parts[draw.choice((0, 1, 1, 3))].append(row)
    return parts


def dense(net: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.to_dense().clone() for name, p in net.named_parameters()}


def expected(loss: Callable[..., dict[str, Any]], mean: str = "token-mean") -> tuple[Tensor, dict[str, Any]]:
    """One process, one backward pass: entry by entry, on what is left when the others are deleted."""
    net, b = Words(), batch()
    numbers = loss in (masked_numbers, jagged, plain_with_mask)
    answers = net(b["words"])
    target = b["scores"] if numbers else b["labels"]
    per_sample = []
    for row in range(len(target)):
        known = b["known"][row]
        if not bool(known.any()):
            continue
        if numbers:
            per_sample.append((answers[row, known, 0] - target[row, known]) ** 2)
        else:
            per_sample.append(F.cross_entropy(answers[row, known], target[row, known], reduction="none"))
    if mean == "token-mean":
        whole = torch.cat(per_sample).mean()
    else:
        whole = torch.stack([losses.mean() for losses in per_sample]).mean()
    whole.backward()
    return whole.detach(), dense(net)


def check(found: dict[str, Any], wanted: dict[str, Any], **tolerance: float) -> None:
    for name, gradient in wanted.items():
        if gradient is None:
            assert found[name] is None or not found[name].any(), name
        else:
            torch.testing.assert_close(
                found[name].to(gradient.dtype), gradient, msg=lambda m, n=name: f"{n}: {m}", **tolerance
            )


EXACT = {"rtol": 1e-6, "atol": 1e-6}


@pytest.mark.parametrize(
    ("name", "mean"),
    [
        *((name, "token-mean") for name in LOSSES),
        *((n, "seq-mean-token-mean") for n in ("masked_numbers", "jagged", "plain_with_mask")),
    ],
)
def test_any_split_is_the_whole_batch(name: str, mean: Any) -> None:
    loss = LOSSES[name]
    whole, wanted = expected(loss, mean)
    b, net = batch(), Words()
    accumulator = mg.GradientAccumulator(net, mean=mean)
    for parts in ([list(range(9))], splits(9, 0), splits(9, 1), splits(9, 2)):
        net.zero_grad()
        for rows in parts:
            accumulator.backward(**loss(net, part_of(b, rows)))
        found = accumulator.finish()
        assert not found.requires_grad
        torch.testing.assert_close(found, whole, **EXACT)
        check(dense(net), wanted, **EXACT)
        assert net.table.weight.grad.is_coalesced()


def test_several_losses_have_their_own_denominators() -> None:
    b, net = batch(), Words()
    whole, wanted = {}, {}
    for name, loss in (("main", masked_classes), ("aux", masked_numbers)):
        whole[name], wanted[name] = expected(loss)
    accumulator = mg.GradientAccumulator(net)
    for rows in splits(9, 2):
        some = part_of(b, rows)
        main, aux = masked_classes(net, some)["losses"], masked_numbers(net, some)["losses"]
        accumulator.backward({"main": main, "aux": aux if rows else None}, weights={"aux": 0.25})
        assert all(p.grad is None for p in net.parameters())
    means = accumulator.finish()
    assert list(means) == ["aux", "main"]
    for name, mean in means.items():
        torch.testing.assert_close(mean, whole[name], **EXACT)
    together = {n: None if g is None else g + 0.25 * wanted["aux"][n] for n, g in wanted["main"].items()}
    check(dense(net), together, **EXACT)


def test_one_loss_in_a_dict_and_one_that_nothing_has() -> None:
    w = nn.Parameter(torch.tensor([2.0, 3.0]))
    accumulator = mg.GradientAccumulator([w])
    accumulator.backward({"main": w.sum() * 2}, count={"main": 2})
    assert accumulator.finish() == {"main": torch.tensor(10.0)}
    assert w.grad.tolist() == [2.0, 2.0]
    w.grad = None
    nothing = mg.masked(w * NAN, torch.tensor([False, False]))
    accumulator.backward({"main": w, "aux": nothing, "none": None}, count={"main": 2})
    means = accumulator.finish()
    assert means["aux"].isnan()
    assert means["none"].isnan()
    assert means["main"].item() == 2.5
    assert w.grad.tolist() == [0.5, 0.5]


def test_nothing_anywhere_is_nan_with_a_gradient_of_zero() -> None:
    w = nn.Parameter(torch.ones(2))
    accumulator = mg.GradientAccumulator([w])
    accumulator.backward(mg.masked(w * NAN, torch.zeros(2).bool()))
    accumulator.backward(w.sum() * NAN, count=0)
    accumulator.backward(w * NAN, mask=torch.zeros(2).bool())
    assert accumulator.finish().isnan()
    assert w.grad is None or w.grad.tolist() == [0.0, 0.0]


def test_masked_gradients_and_rows() -> None:
    w = nn.Parameter(torch.ones(3))
    masks = iter([torch.tensor([True, True, False]), torch.tensor([True, False, False])])
    w.register_post_accumulate_grad_hook(lambda p: mg.attach_gradient(p, mg.masked(p.grad, next(masks))))
    table = mg.nn.Embedding(5, 2)
    accumulator = mg.GradientAccumulator([w, table.weight])
    for words in ([1, 1], [4, 1]):
        accumulator.backward(w.sum() + table(torch.tensor(words)).sum(1), count=2)
    assert w.grad is None
    accumulator.finish()
    assert mg.optim.attached_gradient(w).tolist() == [1.0, 0.5, None]
    rows = table.weight.grad
    assert rows is not None
    assert rows.is_sparse
    assert rows.to_dense().tolist() == [[0, 0], [0.75, 0.75], [0, 0], [0, 0], [0.25, 0.25]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_parameters_gather_in_float32(dtype: torch.dtype) -> None:
    table = nn.Embedding(3, 2, sparse=True).to(dtype)
    w = nn.Parameter(torch.ones(2, dtype=dtype))
    accumulator = mg.GradientAccumulator([table.weight, w])
    for _ in range(300):  # added up in bfloat16 they stop at 256
        accumulator.backward((w + 0 * table(torch.tensor([1, 1]))).float() * 2, count=4)
    accumulator.finish()
    assert w.grad.tolist() == [1.0, 1.0]
    assert w.grad.dtype is table.weight.grad.dtype is dtype
    w.grad = table.weight.grad = None
    accumulator.backward(torch.ones(300, 2) * w.float() * 400, count=600)  # 120000 in all
    accumulator.finish()
    assert w.grad.tolist() == [200.0, 200.0]


@pytest.mark.parametrize("scaler_of", [torch.amp.GradScaler, mg.amp.GradScaler], ids=["torch", "mg"])
def test_with_a_scaler(scaler_of: Any) -> None:
    w = nn.Parameter(torch.ones(2))
    scaler, optimizer = scaler_of("cpu", init_scale=1024.0), torch.optim.SGD([w], lr=0.5)
    accumulator = mg.GradientAccumulator([w], scaler=scaler)
    accumulator.backward(w * 3, count=2)
    accumulator.backward(w.sum() * 0, count=1)
    assert accumulator.finish() == 2.0
    assert w.grad.tolist() == [1024.0, 1024.0]
    scaler.step(optimizer)
    assert w.tolist() == [0.5, 0.5]
    accumulator.reset()
    accumulator.backward(w, count=2)
    scaler.update(2.0)
    with pytest.raises(
        RuntimeError, match=r"scale went from 1024\.0 to 2\.0.*scaler\.update\(\) after the step"
    ):
        accumulator.finish()


def test_layers_are_frozen_and_trained_again_between_steps() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    x, accumulator = torch.randn(5, 3), mg.GradientAccumulator(net)
    for is_trained in (True, False, True):
        net[0].requires_grad_(is_trained)
        trained = [p for p in net.parameters() if p.requires_grad]
        wanted = torch.autograd.grad(net(x).square().mean(), trained)
        for part in x.split(2):
            accumulator.backward(net(part).square().mean(), count=len(part))
        accumulator.finish()
        for p, gradient in zip(trained, wanted, strict=True):
            torch.testing.assert_close(p.grad, gradient)
        assert is_trained or net[0].weight.grad is None
        net.zero_grad()
