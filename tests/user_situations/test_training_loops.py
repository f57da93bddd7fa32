"""Programs around an operation: scalers and loggers, gates, loops and hooks as they are written for plain tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nan

import maskgrad as mg
from tests.poison import assert_entries, leaf, on

MASK = on(1, 0, 1)


def loss_of(w: Tensor) -> Tensor:
    loss = F.mse_loss(mg.masked(w, MASK), torch.tensor([1.0, nan, 5.0]).double())
    assert isinstance(loss, Tensor)
    return loss


def test_a_loss_is_a_plain_tensor_for_scalers_and_loggers() -> None:
    w = leaf(2.0, nan, 3.0)
    torch.amp.GradScaler("cpu", init_scale=4.0).scale(loss_of(w)).backward()
    assert w.grad.tolist() == [4.0, 0.0, -8.0]
    seen = loss_of(w).detach()
    assert torch.tensor([seen, seen]).tolist() == [2.5, 2.5]
    assert f"{seen:.1f}" == "2.5"


def test_a_gate_writes_into_what_it_was_cut_from() -> None:
    """Half of the features are squashed where they lie."""
    data = torch.tensor([[0.0, 1.0, 3.0, nan]]).double().requires_grad_()
    h = mg.masked(data, on(1, 1, 1, 0).reshape(1, 4)).clone()
    h[..., :2].sigmoid_()
    s = torch.sigmoid(torch.tensor(1.0).double()).item()
    assert_entries(h, [[0.5, s, 3.0, None]])
    (slope,) = torch.autograd.grad(h.sum(), data)
    torch.testing.assert_close(slope, torch.tensor([[0.25, s * (1 - s), 1.0, 0.0]]).double())


def train(w: Any) -> None:
    for _ in range(3):
        ((w - 1.0) ** 2).sum().backward()
        with torch.no_grad():
            w -= 0.25 * w.grad
            w.clamp_(0, 2.5)
        w.grad.zero_()
    assert w.is_leaf
    assert w.requires_grad


def test_a_loop_written_by_hand() -> None:
    data = torch.tensor([2.0, nan, 3.0]).double()
    w, plain = mg.masked(data.clone(), MASK), data[MASK].requires_grad_()
    w.requires_grad = True
    train(w)
    train(plain)
    assert_entries(w.detach(), [plain[0].item(), None, plain[1].item()])


def test_a_hook_sees_what_grad_will_be() -> None:
    """A leaf is the tensor that it was made of: all that is sent to its entries is in its gradient."""
    w, seen = leaf(1.0, 2.0, 3.0), []
    x = mg.masked(w, MASK)
    x.register_hook(seen.append)
    (x.sum() + 10 * w.sum()).backward()
    assert_entries(seen[0], [11.0, None, 11.0])
    assert_entries(x.grad, [11.0, None, 11.0])
    assert w.grad.tolist() == [11.0, 10.0, 11.0]
