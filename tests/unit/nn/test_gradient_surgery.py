"""The module around reverse_gradient: buffer, state, text, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from tests.poison import gradient, leaf, nan

pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def test_the_features_before_it_are_trained_the_other_way() -> None:
    features, head, x = nn.Linear(2, 2), nn.Linear(2, 1), torch.ones(3, 2)
    params = [*features.parameters(), *head.parameters()]
    wanted = torch.autograd.grad(head(features(x)).sum(), params)
    found = torch.autograd.grad(head(mg.nn.ReverseGradient(2.0)(features(x))).sum(), params)
    for gradient_of_one, want, sign in zip(found, wanted, (-2, -2, 1, 1), strict=True):
        torch.testing.assert_close(gradient_of_one, want * sign)


def test_a_schedule_does_not_recompile() -> None:
    layer = mg.nn.ReverseGradient()
    f = torch.compile(lambda v: layer(v).sum(), backend="aot_eager", fullgraph=True)
    x = leaf(1.0, nan)
    assert gradient(f(x), x).tolist() == [-1.0, -1.0]
    with mg.assert_no_recompile():
        layer.scale.fill_(0.5)
        assert gradient(f(x), x).tolist() == [-0.5, -0.5]
    assert layer.state_dict()["scale"].item() == 0.5
    assert repr(layer) == "ReverseGradient(scale=0.5)"


@pytest.mark.parametrize(
    ("scale", "kind", "words"),
    [("1", TypeError, "found str"), (True, TypeError, "found bool"), (nan, ValueError, "finite, found nan")],
)
def test_a_scale_is_a_finite_number(scale: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        mg.nn.ReverseGradient(scale)
