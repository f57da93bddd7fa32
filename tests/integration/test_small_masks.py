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


def _encoder(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True, **options),
        num_layers=2,
        enable_nested_tensor=False,
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "encoder": lambda: _encoder(dropout=0.1),
    "encoder, norm first, gelu": lambda: _encoder(dropout=0.0, norm_first=True, activation="gelu"),
    "mlp": lambda: nn.Sequential(
        nn.Linear(WIDTH, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.2), nn.Linear(32, WIDTH)
    ),
    "norms": lambda: nn.Sequential(nn.RMSNorm(WIDTH), nn.SiLU(), nn.LayerNorm(WIDTH), nn.Tanh()),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_mask_is_expanded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    begin = BooleanPattern.__init__

    def noting(self: BooleanPattern, mask: Tensor, *args: Any, **kwargs: Any) -> None:
        sizes.append(mask.untyped_storage().nbytes())
        begin(self, mask, *args, **kwargs)

    monkeypatch.setattr(BooleanPattern, "__init__", noting)
    model = MODELS[name]()
    x = torch.randn(BATCH, TIME, WIDTH, requires_grad=True)
    out = model(mg.from_lengths(x, LENGTHS))
    pooled = (out + 0.5 * out).mean(1)
    pooled.square().sum().backward()
    assert len(sizes) > 6
    assert max(sizes) <= BATCH * TIME
    assert out.mask.shape == (BATCH, TIME, WIDTH)
    assert torch.equal(out.mask, mg.from_lengths(x, LENGTHS).mask)


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
def test_memory_for_the_backward_pass(name: str) -> None:
    model = MODELS[name]()
    x = torch.randn(BATCH, TIME, WIDTH, requires_grad=True)
    # of what is exactly this size the plain model keeps as much: parameters, activations, marks of dropout
    plain = _saved(lambda: model(x))
    ours = _saved(lambda: model(mg.from_lengths(x, LENGTHS)))
    assert ours <= 1.1 * plain


def test_memory_of_convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU())
    x, mask = torch.randn(4, 3, 16, 16), torch.rand(4, 3, 16, 16) < 0.7
    assert _saved(lambda: model(mg.masked(x, mask))) <= 1.1 * _saved(lambda: model(torch.where(mask, x, 0)))
