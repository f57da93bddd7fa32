"""A network learns from incomplete data, as it would from the data that is there."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.poison import inf, nan


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))


def problem(rows: int = 64) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 3)
    return x, torch.stack([x.sum(1), x[:, 0] * 2], 1)


def poison(data: Tensor, mask: Tensor) -> Tensor:
    garbage = torch.tensor([nan, inf, -1e38]).repeat(data.numel())[: data.numel()].reshape(data.shape)
    return torch.where(mask, data, garbage)


def train(
    net: nn.Module, x: Tensor | mg.MaskedTensor, y: Tensor | mg.MaskedTensor, steps: int = 40
) -> list[float]:
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_missing_rows_are_as_good_as_deleted() -> None:
    x, y = problem()
    keep = torch.rand(len(x)) < 0.5
    masked, compacted = network(), network()
    compacted.load_state_dict(masked.state_dict())
    rows = keep[:, None]
    ours = train(masked, mg.masked(poison(x, rows), rows), mg.masked(poison(y, rows), rows))
    theirs = train(compacted, x[keep], y[keep])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for a, b in zip(masked.parameters(), compacted.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_missing_targets_are_as_good_as_an_indexed_loss() -> None:
    x, y = problem()
    asked = torch.rand(y.shape) < 0.5
    net = network()
    reference = copy.deepcopy(net)
    F.mse_loss(net(x), mg.masked(poison(y, asked), asked)).backward()
    F.mse_loss(reference(x)[asked], y[asked]).backward()
    for a, b in zip(net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_a_step_without_data_changes_nothing() -> None:
    net = network()
    before = copy.deepcopy(net.state_dict())
    nothing = torch.zeros(4, 2).bool()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    F.mse_loss(net(torch.randn(4, 3)), mg.masked(torch.full((4, 2), nan), nothing)).backward()
    optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
