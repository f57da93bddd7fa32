"""Gradients, norms and clipped sums per sample of models of many kinds, against the loop over samples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.unit.gradients.sample_loop import assert_equal_to_the_loop, network, smooth

D = torch.float64


class Words(nn.Module):
    """A sparse table, a dense one, and a linear map; others that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse = nn.Embedding(50, 3, sparse=True)
        self.dense = nn.Embedding(7, 3)
        self.unused = nn.Embedding(40, 3, sparse=True)
        self.out = nn.Linear(3, 2)
        self.idle = nn.Linear(2, 2)

    def forward(self, ids: Tensor) -> Tensor:
        """Mean of the words, ids (B, n)."""
        out: Tensor = self.out((self.sparse(ids) * self.dense(ids % 7)).mean(1))
        return out


class Tied(nn.Module):
    """One parameter in two modules, and one buffer, which is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(3, 3), nn.Linear(3, 3)
        self.up.weight = self.down.weight
        self.down.register_buffer("scale", torch.tensor(2.0))
        self.up.register_buffer("scale", self.down.scale)

    def forward(self, x: Tensor) -> Tensor:
        self.down.scale += 1  # type: ignore[operator]
        found: Tensor = self.up(self.down(x).tanh() * self.up.scale)
        return found


def the_same_block_three_times() -> nn.Module:
    block = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    return nn.Sequential(*[block] * 3, nn.Linear(3, 2))


def tied_table(sparse: bool) -> nn.Module:
    net = nn.Sequential(nn.Embedding(6, 3, sparse=sparse), nn.Tanh(), nn.Linear(3, 6, bias=False))
    net[2].weight = net[0].weight
    return net


def frozen(model: nn.Module, mask: Tensor) -> nn.Module:
    mg.train_only(next(model.parameters()), mask)
    return model


def flat(table: nn.Module) -> nn.Module:
    return nn.Sequential(table, nn.Flatten())


def x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=D)


IDS = torch.tensor([[0, 2, 2, 5], [5, 5, 5, 5], [1, 2, 3, 4]])
ROWS = torch.tensor([True, False, True, True, False, False])[:, None]
MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "network": lambda: (network(), x(5, 3)),
    "positions": lambda: (network(), x(5, 4, 3)),
    "frozen entries": lambda: (frozen(network(), torch.rand(5, 3) < 0.5), x(5, 3)),
    "convolution": lambda: (nn.Sequential(nn.Conv2d(2, 4, 2, groups=2), nn.Flatten()), x(5, 2, 3, 3)),
    "tied modules": lambda: (Tied(), x(4, 3)),
    "block": lambda: (the_same_block_three_times(), x(4, 3)),
    "words": lambda: (Words(), torch.randint(50, (5, 4))),
    "tied table": lambda: (tied_table(False), IDS),
    "tied table, sparse, by the loop": lambda: (tied_table(True), IDS),
    "padding": lambda: (flat(nn.Embedding(6, 3, padding_idx=-1)), IDS),
    "padding, sparse": lambda: (flat(nn.Embedding(6, 3, padding_idx=-1, sparse=True)), IDS),
    "max_norm, sparse, by the loop": lambda: (flat(nn.Embedding(6, 3, max_norm=0.5, sparse=True)), IDS),
    "frequencies": lambda: (flat(nn.Embedding(6, 3, scale_grad_by_freq=True)), IDS),
    "frozen rows": lambda: (frozen(flat(nn.Embedding(6, 3)), ROWS), IDS),
    "frozen rows, sparse": lambda: (frozen(flat(nn.Embedding(6, 3, sparse=True)), ROWS), IDS),
    "bag": lambda: (nn.EmbeddingBag(6, 3, mode="max", padding_idx=2), IDS),
    "bag, sparse, by the loop": lambda: (nn.EmbeddingBag(6, 3, padding_idx=2, sparse=True), IDS),
    "weighted bag": lambda: (
        nn.EmbeddingBag(6, 3, mode="sum"), {"input": torch.randint(6, (4, 5)), "per_sample_weights": x(4, 5)}
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "options", [{}, {"chunk_size": 1}, {"chunk_size": 2}, {"method": "loop", "chunk_size": 7}], ids=str
)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_norms_and_clipped_sums_equal_the_loop(name: str, options: dict[str, Any]) -> None:
    model, inputs = MODELS[name]()
    model.double()
    identities = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    state = copy.deepcopy(model.state_dict())
    method = "loop" if name.endswith("by the loop") else "batched"
    found = assert_equal_to_the_loop(model, smooth, inputs, **{"method": method, **options})
    assert [id(tensor) for tensor in (*model.parameters(), *model.buffers())] == identities
    if not name.startswith("max_norm"):  # which writes to its table
        torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    first = next(iter(found.values()))
    is_sparse = name == "words" or (", sparse" in name and "tied" not in name)
    assert first.layout is (torch.sparse_coo if is_sparse else torch.strided)
    grad = next(model.parameters()).grad
    assert grad is not None
    assert grad.layout is first.layout
    if is_sparse:
        assert first.is_coalesced()
        assert first.dense_dim() == 1
        assert first._nnz() <= inputs.numel()
