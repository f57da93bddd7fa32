"""TorchScript refuses MaskedTensors in words, before a graph arises that is right for one mask only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.poison import nan, on

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # TorchScript as a whole
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

MASK = on(1, 0, 1)
X = torch.tensor([1.0, nan, 3.0])
WAY_OUT = r"use torch\.compile\(fullgraph=True\), or torch\.export\.export"


def total(x: Tensor, k: Tensor) -> Tensor:
    found: Tensor = mg.masked(x, k).sum()
    return found


class Total(nn.Module):
    def forward(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return mg.masked(x, k).sum()


CLOSED_OVER = mg.masked(X, MASK)
STORED = CLOSED_OVER.to_sparse()

TRACES: dict[str, Callable[[], Any]] = {
    "made inside": lambda: torch.jit.trace(total, (X, MASK)),
    "in a module": lambda: torch.jit.trace(Total(), (X, MASK)),
    "closed over": lambda: torch.jit.trace(lambda x: (CLOSED_OVER * x).filled(0.0), (X,)),
    "returned": lambda: torch.jit.trace(mg.masked, (X, MASK)),
    "from NaN": lambda: torch.jit.trace(lambda x: mg.from_nan(x).sum(), (X,)),
    "stored": lambda: torch.jit.trace(lambda x: (STORED * 2).filled(0.0) + x, (X,)),
    "several methods": lambda: torch.jit.trace_module(Total(), {"forward": (X, MASK)}),
}


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_traces(trace: Any) -> None:
    with pytest.raises(
        mg.UnsupportedOperationError, match=rf"torch\.jit\.trace does not support .*{WAY_OUT}"
    ):
        trace()


def test_masked_arguments_of_a_trace_are_refused_by_torch() -> None:
    with pytest.raises(RuntimeError, match="value of type MaskedTensor"):
        torch.jit.trace(lambda v: v * 2, (CLOSED_OVER,))


def test_scripted_modules() -> None:
    with pytest.raises(mg.UnsupportedOperationError, match="maskgrad's masked"):
        torch.jit.script(Total())
    with pytest.raises(mg.UnsupportedOperationError, match="maskgrad's ReverseGradient"):
        torch.jit.script(nn.Sequential(nn.Tanh(), mg.nn.ReverseGradient()))


def test_every_public_function_is_refused_by_name() -> None:
    for home in (mg, mg.functional):
        for name in home.__all__:
            function = getattr(home, name)
            if type(function) is type(total):
                with pytest.raises(mg.UnsupportedOperationError, match=f"maskgrad's {function.__name__} "):
                    torch.jit.script(function)


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_scripted_functions_refuse_masked_arguments() -> None:
    with pytest.raises(RuntimeError, match="found type 'MaskedTensor'"):
        torch.jit.script(twice)(CLOSED_OVER)


def test_the_way_out() -> None:
    compiled = torch.compile(total, backend="aot_eager", fullgraph=True)
    exported = torch.export.export(Total(), (X, MASK)).module()
    for mask in (MASK, ~MASK, torch.zeros(3).bool()):
        expected = total(X, mask)
        torch.testing.assert_close(compiled(X, mask), expected, equal_nan=True)
        torch.testing.assert_close(exported(X, mask), expected, equal_nan=True)
