"""The module around reverse_gradient: buffer, state, text, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from tests.poison import gradient, leaf, nan

pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


class TestReverseGradient:
    def test_reverses_in_a_network(self) -> None:
        features, head = nn.Linear(2, 2), nn.Linear(2, 1)
        x = torch.ones(3, 2)
        nn.Sequential(features, head)(x).sum().backward()
        wanted = [p.grad.clone() for p in (*features.parameters(), *head.parameters())]
        features.zero_grad()
        head.zero_grad()
        nn.Sequential(features, mg.nn.ReverseGradient(2.0), head)(x).sum().backward()
        for found, want, sign in zip(
            (*features.parameters(), *head.parameters()), wanted, (-2, -2, 1, 1), strict=True
        ):
            torch.testing.assert_close(found.grad, want * sign)

    def test_a_schedule_does_not_recompile(self) -> None:
        layer = mg.nn.ReverseGradient()
        f = torch.compile(lambda v: layer(v).sum(), backend="aot_eager", fullgraph=True)
        x = leaf(1.0, nan)
        assert gradient(f(x), x).tolist() == [-1.0, -1.0]
        with mg.assert_no_recompile():
            layer.scale.fill_(0.5)
            assert gradient(f(x), x).tolist() == [-0.5, -0.5]

    def test_state_and_text(self) -> None:
        layer = mg.nn.ReverseGradient(0.5)
        assert layer.state_dict()["scale"].item() == 0.5
        assert repr(layer) == "ReverseGradient(scale=0.5)"

    @pytest.mark.parametrize(
        ("scale", "kind", "words"),
        [
            ("1", TypeError, "found str"),
            (True, TypeError, "found bool"),
            (nan, ValueError, "finite, found nan"),
        ],
    )
    def test_refuses(self, scale: Any, kind: type[Exception], words: str) -> None:
        with pytest.raises(kind, match=words):
            mg.nn.ReverseGradient(scale)
