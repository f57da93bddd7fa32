"""Gradients of several ranks without a wrapper's exchange: accumulated, or of a loss of all samples; and mistakes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks
from tests.unit.gradients import test_coupled_backward as coupled
from tests.unit.gradients.test_accumulation import EXACT, check, dense

fsdp = pytest.importorskip("torch.distributed.fsdp")

#: Rank 0 has "main" twice, once beside "aux"; rank 1 has "main" and "rare"; rank 2 has nothing.
NAMED: list[list[dict[str, list[float]]]] = [
    [{"main": [1.0, 3.0]}, {"aux": [7.0], "main": [13.0]}],
    [{"main": [19.0]}, {"rare": [29.0, 37.0, 42.0]}],
    [],
]
WEIGHTS = {"main": 1.0, "aux": 0.5, "rare": 2.0}


def _with_missing_names(rank: int, world_size: int) -> Any:
    w = nn.Parameter(torch.ones(()))
    accumulator = mg.GradientAccumulator([w])
    for values in NAMED[rank]:
        losses = {name: w * torch.tensor(x) for name, x in values.items()}
        counts = {name: len(x) for name, x in values.items()}
        accumulator.backward(losses, counts, weights={name: WEIGHTS[name] for name in values})
    return {name: mean.item() for name, mean in accumulator.finish().items()}, w.grad.item()


def test_a_name_that_micro_batches_of_one_rank_lack() -> None:
    means = {"aux": 7.0, "main": 9.0, "rare": 36.0}
    assert run_on_ranks(_with_missing_names, 3) == [(means, 9 + 0.5 * 7 + 2 * 36)] * 3


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
PARTS: list[list[list[int]]] = [[[0, 1, 2], [3]], [[4], []]]


def gradients_of(module: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, p in module.named_parameters():
        grad: Any = p.grad
        found[name] = (grad.full_tensor() if hasattr(grad, "full_tensor") else grad.to_dense()).clone()
    module.zero_grad()
    return found


def _sharded(rank: int, world_size: int) -> list[Any]:
    module: Any = Tower()
    fsdp.fully_shard(module.layers[0])
    fsdp.fully_shard(module.layers)
    model = mg.distributed.prepare(module)
    accumulator = mg.GradientAccumulator(model)
    with pytest.raises(ValueError, match="several losses"):
        accumulator.backward({"a": model(WORDS[:1]), "b": model(WORDS[:1])}, count={"a": 1, "b": 1})
    found = []
    for _ in range(2):
        for rows in PARTS[rank]:
            x = WORDS[rows] if rows else WORDS[:1]
            accumulator.backward(model(x).square(), mask=torch.full((len(x),), bool(rows)))
        found.append((accumulator.finish(), gradients_of(module)))
    del accumulator
    own = WORDS[4 * rank : 4 * rank + 4]
    loss = mg.coupled_backward(model, own.split(2), lambda y: y.mean() ** 2)
    found.append((loss, gradients_of(module)))
    model(own).square().mean().backward()  # exchanged by themselves again
    return [*found, gradients_of(module)]


def test_sharded_layers() -> None:
    whole = Tower()

    def truth(rows: int, loss_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        loss = loss_of(whole(WORDS[:rows]))
        loss.backward()
        return loss.detach(), gradients_of(whole)

    accumulated = truth(5, lambda y: y.square().mean())
    wanted = [accumulated, accumulated, truth(8, lambda y: y.mean() ** 2)]
    for *found, after in run_on_ranks(_sharded, 2):
        for (loss, gradients), (wanted_loss, wanted_gradients) in zip(found, wanted, strict=True):
            torch.testing.assert_close(loss, wanted_loss, **EXACT)
            check(gradients, wanted_gradients, **EXACT)
        check(after, truth(8, lambda y: y.square().mean())[1], **EXACT)


def _coupled(rank: int, world_size: int, kind: str, name: str) -> Any:
    net = coupled.Towers()
    net.table.sparse = kind != "ddp"
    model = nn.parallel.DistributedDataParallel(net) if kind == "ddp" else net
    model = mg.distributed.prepare(net) if kind == "prepare" else model
    parts, known = coupled.cut([[3, 1], [5]][rank], at=4 * rank)
    loss = mg.coupled_backward(model, parts, lambda y, at: coupled.LOSSES[name](net, y, at), targets=known)
    return loss, dense(net), getattr(model, "require_backward_grad_sync", True)


@pytest.mark.parametrize(("kind", "name"), [("plain", "cox"), ("ddp", "contrastive"), ("prepare", "cox")])
def test_losses_of_the_samples_of_all_ranks(kind: str, name: str) -> None:
    loss, wanted = coupled.whole(name)
    answers = run_on_ranks(_coupled, 2, kind, name)
    for found, gradients, exchanges_again in answers:
        torch.testing.assert_close(found, loss, **EXACT)
        check(gradients, wanted, **EXACT)
        assert exchanges_again
    torch.testing.assert_close(*(answer[:2] for answer in answers), rtol=0, atol=0)


REFUSED = (ValueError, TypeError, RuntimeError)
DISAGREE = "the ranks disagree; nothing was changed. Rank 0 has param"


def _mistakes(rank: int, world_size: int) -> None:
    w = nn.Parameter(torch.ones(2))
    accumulator = mg.GradientAccumulator([w])

    def good() -> None:
        accumulator.backward(w * 2, count=2)

    for words, *calls in [
        ("without a backward",),
        ("reduced loss", good, lambda: accumulator.backward(w.sum(), count=None if rank else 2)),
        (
            "the ranks disagree",
            lambda: accumulator.backward({"a": w} if rank else w, {"a": 2} if rank else 2),
        ),
        ("the ranks disagree", lambda: accumulator.backward({"a": w}, {"a": 2}, weights={"a": 0.5 + rank})),
        ("a plain backward", good, *[lambda: w.sum().backward()][:rank]),
        ("from before", lambda: setattr(w, "grad", torch.ones(2) if rank else None), *[good][: 1 - rank]),
    ]:
        for call in calls:
            call()
        with pytest.raises(REFUSED, match=words):
            accumulator.finish()
        accumulator.reset()
    good()
    assert accumulator.finish().item() == 2.0
    assert w.grad.tolist() == [1.0, 1.0]  # and it goes on


def _mistakes_in_a_coupled_loss(rank: int, world_size: int) -> None:
    net = nn.Linear(1, 1, bias=False)
    nn.init.ones_(net.weight)
    x = torch.ones(2, 1) * (rank + 1)
    for words, parts, loss, gradient in [
        ("at least one, on every rank", [x][rank:], torch.sum, None),
        ("the loss differs between the ranks", [x], lambda y: (y * (rank + 1)).sum(), None),
        ("dtype", [x if rank else x.double()], torch.sum, None),
        (r"found a Tensor of shape \(4, 1\)", [x], lambda y: y.sum() if rank else y, None),
        (r"\.grad from before", [x], torch.sum, torch.ones(1, 1) if rank else None),
    ]:
        net.weight.grad = gradient
        with pytest.raises(REFUSED, match=words):
            mg.coupled_backward(net, parts, loss)
        assert net.weight.grad is gradient
    net.weight.grad = None
    mg.coupled_backward(net, [x], torch.sum)
    assert net.weight.grad.item() == 6.0


def _different_parameters(rank: int, world_size: int) -> None:
    """Refused by name."""
    for kind, own, other in [
        ("frozen", "'1.weight'", "'0.weight'"),
        ("sharded", "'1.weight'", "'0.weight'"),
        ("dtype", "float32", "float64"),
    ]:
        net: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        net[rank].requires_grad_(kind == "dtype")
        if kind == "sharded":
            fsdp.fully_shard(net[0])
            fsdp.fully_shard(net)
        if rank and kind == "dtype":
            net.double()
        accumulator = mg.GradientAccumulator(net)
        accumulator.backward(net(torch.ones(1, 2, dtype=next(net.parameters()).dtype)), count=2)
        with pytest.raises(ValueError, match=rf"{DISAGREE}.*{own}.*rank 1 has.*{other}"):
            accumulator.finish()
        accumulator.reset()
        net.requires_grad_()
    with pytest.raises(ValueError, match=rf"{DISAGREE}.*'bias'.*rank 1 has nothing more"):
        mg.coupled_backward(nn.Linear(2, 1, bias=not rank), [torch.ones(2, 2)], torch.var)


def _inside_a_wrapper(rank: int, world_size: int) -> None:
    net, module = nn.Linear(2, 1), nn.Linear(2, 1)
    ddp, prepared = nn.parallel.DistributedDataParallel(net), mg.distributed.prepare(module)
    for given in (ddp.parameters(), net, prepared.module):
        with pytest.raises(ValueError, match="DataParallel exchanges the gradients"):
            mg.GradientAccumulator(given)
    with pytest.raises(TypeError, match=r"use torch\.distributed\.fsdp\.fully_shard"):
        mg.GradientAccumulator(fsdp.FullyShardedDataParallel(nn.Linear(2, 1), device_id=torch.device("cpu")))
    groups = [torch.distributed.new_group() for _ in range(2)]
    others = [nn.parallel.DistributedDataParallel(nn.Linear(2, 1), process_group=g) for g in groups]
    with pytest.raises(ValueError, match="wrappers of different process groups"):
        mg.GradientAccumulator(nn.ModuleList(others))
    accumulator = mg.GradientAccumulator(ddp)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ddp(torch.ones(1, 2) * (rank + 1)).sum().backward()
    assert net.weight.grad[0, 0].item() == rank + 1  # not exchanged
    with pytest.raises(RuntimeError, match="those of one rank"):
        optimizer.step()
    optimizer.zero_grad()
    gc.disable()
    del accumulator
    ddp(torch.ones(1, 2) * (rank + 1)).sum().backward()
    gc.enable()
    assert net.weight.grad.tolist() == [[1.5, 1.5]]  # exchanged again
    optimizer.step()
    del ddp
    mg.GradientAccumulator(net.parameters())


@pytest.mark.parametrize(
    "program", [_mistakes, _mistakes_in_a_coupled_loss, _different_parameters, _inside_a_wrapper]
)
def test_a_mistake_of_one_rank_is_raised_on_all(program: Callable[..., None]) -> None:
    run_on_ranks(program, 2)
