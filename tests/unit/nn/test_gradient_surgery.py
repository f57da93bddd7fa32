"""The module around reverse_gradient: buffer, state, text, refusals."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import gradient, leaf, nan

pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


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


def test_a_scale_is_a_finite_number() -> None:
    for scale, kind, words in (("1", TypeError, "str"), (True, TypeError, "bool"), (nan, ValueError, "nan")):
        with pytest.raises(kind, match=f"found {words}"):
            mg.nn.ReverseGradient(scale)  # type: ignore[arg-type]
