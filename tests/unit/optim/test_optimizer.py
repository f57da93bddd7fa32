"""The base class, options that change in place, and gradients of tied weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from maskgrad import optim
from maskgrad.optim import Adagrad
from tests.unit.optim.kinds import coo


def test_tied_weights_give_a_dense_gradient() -> None:
    embedding, head = nn.Embedding(5, 2, sparse=True), nn.Linear(2, 5, bias=False)
    head.weight = embedding.weight
    old = embedding.weight.detach().clone()
    head(embedding(torch.tensor([1]))).sum().backward()
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.layout is torch.strided
    Adagrad([embedding.weight], lr=0.1).step()
    torch.testing.assert_close(embedding.weight - old, -0.1 * embedding.weight.grad.sign())


@pytest.mark.parametrize("option", ["lr", "betas"])
def test_options_in_tensors_may_change_in_place(option: str) -> None:
    p, q = (nn.Parameter(torch.ones(2)) for _ in range(2))
    values = {"lr": torch.tensor(0.1), "betas": (torch.tensor(0.9), 0.99)}
    ours, theirs = optim.Adam([p], **values), optim.Adam([q], lr=0.1, betas=(0.9, 0.99))  # type: ignore[arg-type]
    for step in range(3):
        p.grad = q.grad = torch.tensor([1.0, -step])
        ours.step()
        theirs.step()
        tensor, group = values[option], theirs.param_groups[0]
        if option == "lr":
            tensor.mul_(0.5)  # type: ignore[attr-defined]
            group["lr"] *= 0.5
        else:
            tensor[0].mul_(0.5)  # type: ignore[index]
            group["betas"] = (group["betas"][0] * 0.5, 0.99)
    torch.testing.assert_close(p, q)


def test_a_list_of_options_may_change_in_place() -> None:
    p, q = (nn.Parameter(torch.ones(4, 2)) for _ in range(2))
    ours, theirs = optim.Adam([p], lr=0.1, betas=[0.9, 0.99]), optim.Adam([q], lr=0.1, betas=(0.9, 0.99))  # type: ignore[arg-type]
    for step in range(6):
        p.grad = coo([[1, 3]], torch.full((2, 2), step + 1.0), (4, 2))
        q.grad = p.grad.clone()
        ours.step()
        theirs.step()
        if step == 3:  # long after everything was prepared
            ours.param_groups[0]["betas"][0] = 0.5
            theirs.param_groups[0]["betas"] = (0.5, 0.99)
    assert torch.equal(p, q)
