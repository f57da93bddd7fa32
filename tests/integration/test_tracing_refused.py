"""TorchScript refuses MaskedTensors in words, before a graph arises that is right for one mask only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from tests.poison import nan, on

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # TorchScript as a whole
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

MASK = on(1, 0, 1)
X = torch.tensor([1.0, nan, 3.0])
WAY_OUT = r"use torch\.compile\(fullgraph=True\), or torch\.export\.export"
CLOSED_OVER = mg.masked(X, MASK)
STORED = CLOSED_OVER.to_sparse()


class Total(nn.Module):
    def forward(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return mg.masked(x, k).sum()


TRACES: dict[str, Callable[[], Any]] = {
    "made inside": lambda: torch.jit.trace(Total(), (X, MASK)),
    "closed over": lambda: torch.jit.trace(lambda x: (CLOSED_OVER * x).filled(0.0), (X,)),
    "returned": lambda: torch.jit.trace(mg.masked, (X, MASK)),
    "from NaN": lambda: torch.jit.trace(lambda x: mg.from_nan(x).sum(), (X,)),
    "stored": lambda: torch.jit.trace(lambda x: (STORED * 2).filled(0.0) + x, (X,)),
}


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_traces(trace: Any) -> None:
    with pytest.raises(
        mg.UnsupportedOperationError, match=rf"torch\.jit\.trace does not support .*{WAY_OUT}"
    ):
        trace()


def test_scripted_modules() -> None:
    with pytest.raises(mg.UnsupportedOperationError, match="maskgrad's masked"):
        torch.jit.script(Total())
    with pytest.raises(mg.UnsupportedOperationError, match="maskgrad's ReverseGradient"):
        torch.jit.script(nn.Sequential(nn.Tanh(), mg.nn.ReverseGradient()))
