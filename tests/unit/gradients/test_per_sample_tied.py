"""Gradients for each sample of models in which a module or a tensor occurs twice, is hooked, or is trained in part."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maskgrad as mg
from tests.unit.gradients.sample_loop import METHODS, loop, network

D = torch.float64


class Tied(nn.Module):
    """One parameter in two modules, one buffer in two."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(3, 3, dtype=D), nn.Linear(3, 3, dtype=D)
        self.up.weight = self.down.weight
        for module in (self.down, self.up):
            module.register_buffer(
                "scale", torch.tensor(2.0, dtype=D) if module is self.down else self.down.scale
            )

    def forward(self, x: Tensor) -> Tensor:
        self.down.scale += 1  # type: ignore[operator]
        found: Tensor = self.up(self.down(x).tanh() * self.up.scale)[:, :2]
        return found


class Rows(nn.Module):
    """A table of which some rows are looked up."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 2, sparse=sparse, dtype=D)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.table(ids).sum(1)
        return found


def albert() -> nn.Module:
    """The same block three times, in a list that names it three times."""
    block = nn.Sequential(nn.Linear(3, 3, dtype=D), nn.Tanh())
    return nn.Sequential(*[block] * 3, nn.Linear(3, 2, dtype=D))


@pytest.mark.parametrize("make", [Tied, albert])
@METHODS
def test_tied_models_are_differentiated_and_left_as_they_were(
    make: Callable[[], nn.Module], method: Any
) -> None:
    model, x, t = make(), torch.randn(4, 3, dtype=D), torch.randn(4, 2, dtype=D)
    identities = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    state = copy.deepcopy(model.state_dict())
    expected = [loop(copy.deepcopy(model), F.mse_loss, x[i : i + 1], t[i : i + 1]) for i in range(4)]
    found = mg.per_sample_grad(model, F.mse_loss, x, t, method=method)
    norms = mg.per_sample_grad_norms(model, F.mse_loss, x, t, method=method)
    mg.clipped_backward(model, F.mse_loss, x, t, max_norm=float("inf"), method=method)
    assert [id(tensor) for tensor in (*model.parameters(), *model.buffers())] == identities
    assert all(type(p) is nn.Parameter for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], torch.cat([row[name] for row in expected]))
        torch.testing.assert_close(p.grad, found[name].mean(0))
    torch.testing.assert_close(
        norms, torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).norm(dim=0)
    )
    model(x).sum().backward()


@METHODS
def test_frozen_entries_have_no_gradient_and_count_for_no_norm(method: Any) -> None:
    model, x, t = network(), torch.randn(3, 3, dtype=D), torch.randn(3, 2, dtype=D)
    usual = mg.per_sample_grad(model, F.mse_loss, x, t)
    mask = torch.rand(5, 3) < 0.5
    mg.train_only(model[0].weight, mask)  # type: ignore[index]
    found = mg.per_sample_grad(model, F.mse_loss, x, t, method=method)
    for name, gradient in usual.items():
        torch.testing.assert_close(found[name], gradient * mask if name == "0.weight" else gradient)
    norms = mg.per_sample_grad_norms(model, F.mse_loss, x, t, method=method)
    torch.testing.assert_close(
        norms, torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).norm(dim=0)
    )
    mg.clipped_backward(model, F.mse_loss, x, t, max_norm=0.1, reduction="sum", method=method)
    for name, p in model.named_parameters():
        share = (0.1 / (norms + 1e-6)).clamp(max=1).view(-1, *[1] * p.dim())
        torch.testing.assert_close(p.grad, (found[name] * share).sum(0))


@METHODS
@pytest.mark.parametrize("sparse", [False, True])
def test_frozen_rows_of_a_table(method: Any, sparse: bool) -> None:
    model, ids = Rows(sparse), torch.tensor([[0, 1], [1, 1], [4, 2]])
    mg.train_only(model.table.weight, torch.tensor([True, False, True, True, False])[:, None])
    found = mg.per_sample_grad(model, lambda y: y.sum(), ids, method=method)["table.weight"]
    dense = found.to_dense()
    assert dense[:, :, 0].tolist() == [[1, 0, 0, 0, 0], [0] * 5, [0, 0, 1, 0, 0]]
    assert found.layout == (torch.sparse_coo if sparse else torch.strided)
