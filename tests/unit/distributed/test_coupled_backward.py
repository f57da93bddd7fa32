"""Losses that compare the samples of all ranks, against one pass over all of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from tests.ranks import run_on_ranks
from tests.unit.distributed.test_accumulation import WORDS, Tower, fsdp, message_of
from tests.unit.gradients import test_coupled_backward as coupled
from tests.unit.gradients.test_accumulation import EXACT, check, dense


def _coupled(rank: int, world_size: int, kind: str, name: str) -> Any:
    net = coupled.Towers()
    net.table.sparse = kind != "ddp"
    model = nn.parallel.DistributedDataParallel(net) if kind == "ddp" else net
    model = mg.distributed.prepare(net) if kind == "prepare" else model
    parts, known = coupled.cut([[3, 1], [5]][rank], at=4 * rank)
    loss = mg.coupled_backward(model, parts, lambda y, at: coupled.LOSSES[name](net, y, at), targets=known)
    return loss, dense(net), getattr(model, "require_backward_grad_sync", True)


@pytest.mark.parametrize(
    ("kind", "name"), [("plain", "cox"), ("ddp", "contrastive"), ("prepare", "triplets")]
)
def test_losses_of_the_samples_of_all_ranks(kind: str, name: str) -> None:
    expected_loss, wanted = coupled.whole(name)
    (loss, gradients, after), (other_loss, other_gradients, other_after) = run_on_ranks(
        _coupled, 2, kind, name
    )
    assert torch.equal(loss, other_loss)
    torch.testing.assert_close(loss, expected_loss, **EXACT)
    coupled.check(gradients, wanted)
    for parameter, gradient in gradients.items():
        assert gradient is None or torch.equal(gradient, other_gradients[parameter]), parameter
    assert after  # wrappers exchange by themselves again
    assert other_after


def _coupled_sharded(rank: int, world_size: int) -> Any:
    module: Any = Tower()
    fsdp.fully_shard(module.layers[0])
    fsdp.fully_shard(module.layers)
    loss = mg.coupled_backward(module, WORDS[4 * rank : 4 * rank + 4].split(2), lambda y: y.mean() ** 2)
    return loss, {
        n: (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad.to_dense()).clone()
        for n, p in module.named_parameters()
    }


def test_losses_of_all_samples_with_sharded_layers() -> None:
    whole = Tower()
    loss = whole(WORDS).mean() ** 2
    loss.backward()
    wanted = {n: p.grad.to_dense() for n, p in whole.named_parameters()}  # type: ignore[union-attr]
    for found, gradients in run_on_ranks(_coupled_sharded, 2):
        torch.testing.assert_close(found, loss.detach(), **EXACT)
        check(gradients, wanted, **EXACT)


def _coupled_mistakes(rank: int, world_size: int) -> list[str]:
    net = nn.Linear(1, 1, bias=False)
    nn.init.ones_(net.weight)
    x = torch.ones(2, 1) * (rank + 1)

    def said(parts: Any, loss: Any) -> str:
        return message_of(lambda: mg.coupled_backward(net, parts, loss)) + f"; {net.weight.grad}"

    found = [
        said([x][rank:], torch.sum),
        said([x], lambda y: (y * (rank + 1)).sum()),
        said([x.expand(2, 1) if rank else x.double()], torch.sum),
        said([x], lambda y: y.sum() if rank else y),
    ]
    net.weight.grad = torch.ones(1, 1) if rank else None
    found.append(message_of(lambda: mg.coupled_backward(net, [x], torch.sum)))
    net.weight.grad = None
    return [*found, message_of(lambda: mg.coupled_backward(net, [x], torch.sum)), str(net.weight.grad)]


def test_mistakes_in_a_coupled_loss_are_raised_on_all() -> None:
    words = ["at least one, on every rank", "the loss differs between the ranks", "same dtype|dtype",
             r"found a Tensor of shape \(4, 1\)", r"\.grad from before", "nothing", r"tensor\(\[\[6"]  # fmt: skip
    for answers in run_on_ranks(_coupled_mistakes, 2):
        for said, expected_words in zip(answers, words, strict=True):
            assert re.search(expected_words, said), said
        assert all("; None" in said for said in answers[:4])
