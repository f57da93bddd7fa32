"""Masks of padding stay in their smallest shape on the way through a model, and cost its memory next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.patterns import BooleanPattern

BATCH, TIME, WIDTH = 4, 32, 64
LENGTHS = torch.tensor([32, 7, 1, 20])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "encoder": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True, dropout=0.1, activation="gelu"),
        num_layers=2,
        enable_nested_tensor=False,
    ),
    "norms": lambda: nn.Sequential(
        nn.Linear(WIDTH, 32),
        nn.RMSNorm(32),
        nn.SiLU(),
        nn.Dropout(0.2),
        nn.LayerNorm(32),
        nn.Linear(32, WIDTH),
    ),
}


def _saved(program: Callable[[], Any]) -> int:
    """The memory, in bytes, of all that is kept for the backward pass."""
    kept: dict[int, tuple[int, Tensor]] = {}

    def keep(x: Tensor) -> Tensor:
        memory = x.untyped_storage()
        kept[memory.data_ptr()] = memory.nbytes(), x
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        result = program()
    total = sum(size for size, _ in kept.values())
    del result
    return total


@pytest.mark.parametrize("name", MODELS)
def test_no_mask_is_expanded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is exactly this size the plain model keeps as much: parameters, activations, marks of dropout."""
    sizes = []
    begin = BooleanPattern.__init__

    def noting(self: BooleanPattern, mask: Tensor, *args: Any, **kwargs: Any) -> None:
        sizes.append(mask.untyped_storage().nbytes())
        begin(self, mask, *args, **kwargs)

    monkeypatch.setattr(BooleanPattern, "__init__", noting)
    model, x = MODELS[name](), torch.randn(BATCH, TIME, WIDTH, requires_grad=True)
    masked = mg.from_lengths(x, LENGTHS)
    out = model(masked)
    (out + 0.5 * out).mean(1).square().sum().backward()
    assert len(sizes) > 6
    assert max(sizes) <= BATCH * TIME
    assert torch.equal(out.mask, masked.mask)
    assert _saved(lambda: model(masked)) <= 1.1 * _saved(lambda: model(x))


def test_memory_of_convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU())
    x, mask = torch.randn(4, 3, 16, 16), torch.rand(4, 3, 16, 16) < 0.7
    assert _saved(lambda: model(mg.masked(x, mask))) <= 1.1 * _saved(lambda: model(torch.where(mask, x, 0)))
