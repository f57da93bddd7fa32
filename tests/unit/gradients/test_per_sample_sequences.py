"""Masked and jagged batches: each sample against PyTorch on its own positions alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg

D = torch.float64
LENGTHS = torch.tensor([6, 2, 4, 1])
TARGETS = torch.randn(4, 2, dtype=D, generator=torch.Generator().manual_seed(1))


class Pooled(nn.Module):
    """Layers, and the mean over the positions of what they give."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner, self.last = inner, nn.Linear(width, 2)

    def forward(self, x: Any) -> Any:
        """The outputs of all positions, or the first of several outputs."""
        y = self.inner(x)
        y = y[0] if isinstance(y, tuple) else y
        return self.last(y.mean(1) if y.ndim == 3 else y)


def rnn(kind: Any, **options: Any) -> nn.Module:
    return kind(4, 5, batch_first=True, **options)  # type: ignore[no-any-return]


def alone(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The gradients of the samples, one by one, each without its padding."""
    rows = []
    for i, length in enumerate(LENGTHS):
        loss = F.mse_loss(model(x[i : i + 1, :length]), TARGETS[i : i + 1])
        rows.append([g.to_dense() for g in torch.autograd.grad(loss, list(model.parameters()))])
    names = [name for name, _ in model.named_parameters()]
    return {name: torch.stack(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


class TestOtherForms:
    """What holds sequences in other ways is refused; the messages name what to write, and that is done here."""

    def test_offsets_of_bags(self) -> None:
        bag = nn.EmbeddingBag(7, 2, mode="sum").double()
        ids, offsets = torch.tensor([1, 2, 3, 1, 5, 6]), torch.tensor([0, 2, 3])
        with pytest.raises(
            ValueError, match=r"mg.from_offsets\(rows, .*pad\(offsets, \(0, 1\), value=len\(rows\)\)"
        ):
            mg.per_sample_grad(bag, F.mse_loss, (ids, offsets), TARGETS[:3])
        batch = mg.from_offsets(ids, torch.nn.functional.pad(offsets, (0, 1), value=len(ids)))
        found = mg.per_sample_grad(bag, F.mse_loss, batch, TARGETS[:3], method="batched")["weight"]
        for i, part in enumerate([ids[:2], ids[2:3], ids[3:]]):
            loss = F.mse_loss(bag(part, torch.tensor([0])), TARGETS[i : i + 1])
            torch.testing.assert_close(found[i], torch.autograd.grad(loss, bag.weight)[0])

    def test_packed_sequences(self) -> None:
        model = Pooled(rnn(nn.GRU), 5).double()
        x = torch.randn(4, 6, 4, dtype=D)
        packed = nn.utils.rnn.pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
        for inputs in (packed, (packed,), {"x": packed}):
            with pytest.raises(
                TypeError, match=r"pad_packed_sequence\(packed.*batch_first=True for recurrent"
            ):
                mg.per_sample_grad(model, F.mse_loss, inputs, TARGETS)
        batch = mg.from_lengths(*torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True))
        expected = alone(model, x)
        for name, g in mg.per_sample_grad(model, F.mse_loss, batch, TARGETS, method="loop").items():
            torch.testing.assert_close(g, expected[name])

    def test_layouts_of_torch(self) -> None:
        model, eye = nn.Linear(3, 1, bias=False).double(), torch.eye(3, dtype=D)
        nested = torch.nested.nested_tensor([eye, eye[:1]], layout=torch.jagged)
        for x, way in ((nested, "nested"), (eye.to_sparse_csr(), "sparse")):
            with pytest.raises(TypeError, match=rf"inputs must be .*; write mg.from_{way}\(x\)"):
                mg.per_sample_grad(model, lambda y: y.sum(), x)
        found = mg.per_sample_grad(model, lambda y: y.sum(), mg.from_nested(nested))["weight"]
        torch.testing.assert_close(found, torch.tensor([[[1, 1, 1]], [[1, 0, 0]]], dtype=D))
        with pytest.warns(UserWarning, match=r"layout torch.sparse_csr.*pass x.to_dense\(\)"):
            mg.per_sample_grad(model, lambda y: y.sum(), mg.from_sparse(eye.to_sparse_csr()))
