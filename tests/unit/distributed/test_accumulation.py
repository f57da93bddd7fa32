"""Accumulation over micro-batches and ranks: several losses, shards, mistakes; test_random_splits.py has the splits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks
from tests.unit.gradients.test_accumulation import (
    EXACT,
    check,
)

fsdp = pytest.importorskip("torch.distributed.fsdp")


def wrapped(kind: str, net: nn.Module) -> Any:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(Flat(net))
    return mg.distributed.prepare(net) if kind == "prepare" else net


class Flat(nn.Module):
    """Without a sparse table, which DistributedDataParallel takes, and without parameters that nobody uses."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        net.table.sparse = False

    def forward(self, *args: Any) -> Any:
        return self.net(*args)


def _with_missing_names(rank: int, world_size: int) -> Any:
    """Rank 0 has "main" twice, once beside "aux"; rank 1 has "main" and "rare"; rank 2 has nothing."""
    w = nn.Parameter(torch.ones(2))
    accumulator = mg.GradientAccumulator([w])
    weights = {"main": 1.0, "aux": 0.5, "rare": 2.0}
    for values in MISSING[rank]:
        losses = {name: (w * torch.tensor(x)).sum(1) for name, x in values.items()}
        counts = {name: len(x) for name, x in values.items()}
        accumulator.backward(losses, counts, weights={name: weights[name] for name in values})
    return accumulator.finish(), w.grad


MISSING: list[list[dict[str, list[list[float]]]]] = [
    [{"main": [[1.0, 2.0], [3.0, 5.0]]}, {"aux": [[7.0, 11.0]], "main": [[13.0, 17.0]]}],
    [{"main": [[19.0, 23.0]]}, {"rare": [[29.0, 31.0], [37.0, 41.0], [43.0, 47.0]]}],
    [],
]


def test_a_name_that_micro_batches_of_one_rank_lack() -> None:
    entries: dict[str, list[list[float]]] = {}
    for values in (one for of_rank in MISSING for one in of_rank):
        for name, x in values.items():
            entries.setdefault(name, []).extend(x)
    means = {name: torch.tensor(x).mean(0) for name, x in entries.items()}
    wanted = means["main"] + 0.5 * means["aux"] + 2 * means["rare"]
    for found, gradient in run_on_ranks(_with_missing_names, 3):
        assert list(found) == ["aux", "main", "rare"]
        for name, mean in found.items():
            torch.testing.assert_close(mean, means[name].sum(), **EXACT)
        torch.testing.assert_close(gradient, wanted, **EXACT)


class Tower(nn.Module):
    """Layers to be sharded, and a table that is not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.table = nn.Embedding(9, 4, sparse=True)
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, words: Tensor) -> Tensor:
        return self.layers(self.table(words).mean(1)).squeeze(1)


WORDS = torch.arange(40).view(8, 5) * 7 % 9
SHARDS: list[list[list[int]]] = [[[0, 1, 2], [3]], [[4], []]]


def _sharded(rank: int, world_size: int, rounds: int) -> Any:
    module: Any = Tower()
    fsdp.fully_shard(module.layers[0])
    fsdp.fully_shard(module.layers)
    model = mg.distributed.prepare(module)
    accumulator = mg.GradientAccumulator(model)
    with pytest.raises(ValueError, match="several losses"):
        accumulator.backward({"a": model(WORDS[:1]), "b": model(WORDS[:1])}, count={"a": 1, "b": 1})
    for _ in range(rounds):
        module.zero_grad()
        for rows in SHARDS[rank]:
            x = WORDS[rows] if rows else WORDS[:1]
            accumulator.backward(model(x).square(), mask=torch.full((len(x),), bool(rows)))
        mean = accumulator.finish()
    full = {
        n: (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad.to_dense()).clone()
        for n, p in module.named_parameters()
    }
    del accumulator
    module.zero_grad()
    model(WORDS[4 * rank : 4 * rank + 4]).square().mean().backward()  # exchanged by themselves again
    after = {n: p.grad.full_tensor().clone() for n, p in module.layers.named_parameters()}
    return mean, full, after


def test_sharded_layers() -> None:
    whole = Tower()
    wanted = []
    for rows in ([0, 1, 2, 3, 4], list(range(8))):
        whole.zero_grad()
        loss = whole(WORDS[rows]).square().mean()
        loss.backward()
        wanted.append((loss.detach(), {n: p.grad.to_dense().clone() for n, p in whole.named_parameters()}))
    for mean, gradients, after in run_on_ranks(_sharded, 2, 2):
        torch.testing.assert_close(mean, wanted[0][0], **EXACT)
        check(gradients, wanted[0][1], **EXACT)
        check(
            after,
            {
                n: g
                for n, g in ((n.removeprefix("layers."), g) for n, g in wanted[1][1].items())
                if n in after
            },
            **EXACT,
        )


def message_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def _mistakes(rank: int, world_size: int) -> list[Any]:
    w = nn.Parameter(torch.ones(2))
    accumulator = mg.GradientAccumulator([w])
    found = [message_of(accumulator.finish)]  # nobody has called backward

    def trial(*calls: Callable[[], Any]) -> None:
        for call in calls:
            call()
        found.append((message_of(accumulator.finish), None if w.grad is None else w.grad.tolist()))
        accumulator.reset()

    def good() -> None:
        accumulator.backward(w * 2, count=2)

    trial(good, lambda: accumulator.backward(w.sum(), count=None if rank else 2))
    trial(good, lambda: accumulator.backward(w, count=-1 if rank else 2), good)
    trial(lambda: accumulator.backward({"a": w} if rank else w, count={"a": 2} if rank else 2))
    trial(lambda: accumulator.backward({"a": w}, count={"a": 2}, weights={"a": 0.5 + rank}))
    trial(good, *[lambda: nn.utils.clip_grad_norm_([w], 1e-3)][:rank])
    trial(good, *[lambda: w.sum().backward()][:rank])
    w.grad = torch.ones(2) if rank else None
    trial(*[good][: 1 - rank])  # rank 1 has no data, and a gradient from before
    good()
    assert accumulator.finish().item() == 2.0
    found.append(w.grad.tolist())  # and it goes on
    return found


def test_a_mistake_of_one_rank_is_raised_on_all() -> None:
    answers = run_on_ranks(_mistakes, 2)
    words = ["reduced loss", "at least 0", "the ranks disagree", "the ranks disagree",
             "were changed", "a plain backward", "from before"]  # fmt: skip
    for answer in answers:
        assert "without a backward" in answer[0]
        assert len(answer) == len(words) + 2
        for (said, _), expected_words in zip(answer[1:-1], words, strict=True):
            assert expected_words in said
        assert answer[-1] == [1.0, 1.0]
    assert answers[0][1][1] == [
        1.0,
        1.0,
    ]  # of two losses, by a power of two: not divided
    assert "rank 1 raised an error" in answers[0][1][0]


def _of_different_parameters(rank: int, world_size: int) -> list[Any]:
    found = []
    for kind in ("frozen", "fully_shard", "number", "dtype"):
        net: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        net[rank].requires_grad_(kind not in ("frozen", "fully_shard"))
        if kind == "fully_shard":
            fsdp.fully_shard(net[0])
            fsdp.fully_shard(net)
        if rank:
            net = net.double() if kind == "dtype" else net
            net = net[:1] if kind == "number" else net
        accumulator = mg.GradientAccumulator(net)
        x = torch.ones(1, 2, dtype=torch.float64 if rank and kind == "dtype" else torch.float32)
        accumulator.backward(net(x), count=2)
        found.append(message_of(accumulator.finish))
        accumulator.reset()
        net.requires_grad_()
    coupled = nn.Linear(2, 1, bias=not rank)
    loss = message_of(lambda: mg.coupled_backward(coupled, [torch.ones(2, 2)], torch.var))
    return [*found, loss]


def test_ranks_that_train_different_parameters_are_refused_by_name() -> None:
    names = [("'1.weight'", "'0.weight'")] * 2 + [("'1.weight'", "nothing more"), ("float32", "float64")]
    for answer in run_on_ranks(_of_different_parameters, 2):
        for said, (own, other) in zip(answer, [*names, ("'bias'", "nothing more")], strict=True):
            assert (
                "ValueError: GradientAccumulator: the ranks disagree; nothing was changed. Rank 0 has param"
                in said
            )
            assert own in said.partition("rank 1 has")[0]
            assert other in said.partition("rank 1 has")[2]


def _others(rank: int, world_size: int) -> list[str]:
    net = nn.Linear(2, 1)
    wrappers = [nn.parallel.DistributedDataParallel(net), mg.distributed.prepare(nn.Linear(2, 1))]
    ddp = wrappers[0]
    found = [
        message_of(lambda: mg.GradientAccumulator(wrappers[0].parameters())),
        message_of(lambda: mg.GradientAccumulator(net)),
        message_of(lambda: mg.GradientAccumulator(wrappers[1].module)),
    ]
    accumulator = mg.GradientAccumulator(ddp)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ddp(torch.ones(1, 2) * (rank + 1)).sum().backward()
    found += [str(net.weight.grad[0, 0].item() == rank + 1), message_of(optimizer.step)]
    optimizer.zero_grad()
    gc.disable()
    del accumulator
    ddp(torch.ones(1, 2) * (rank + 1)).sum().backward()
    gc.enable()
    found.append(str(net.weight.grad.tolist()))
    optimizer.step()
    del ddp
    wrappers.clear()
    return [*found, message_of(lambda: mg.GradientAccumulator(net.parameters()))]


def test_parameters_of_a_data_parallel_wrapper_are_refused() -> None:
    for bare, inner, prepared, silent, step, after, gone in run_on_ranks(_others, 2):
        for said in (bare, inner, prepared):
            assert "DataParallel exchanges the gradients" in said
        assert silent == "True"
        assert "those of one rank" in step
        assert after == "[[1.5, 1.5]]"
        assert gone == "nothing"
