"""What is told to torch.func: once, and of nothing but MaskedTensors."""

from __future__ import annotations

import pytest
import torch
from torch.func import jvp, vmap

import maskgrad as mg
from tests.poison import assert_entries, nan, on


def test_tangents_have_the_pattern_of_results() -> None:
    values = torch.tensor([1.0, nan, 3.0])
    result, tangent = jvp(
        lambda x: [mg.masked(x, on(1, 0, 1)) * 3, mg.masked(x, x > 2), x > 2], (values,), (torch.ones(3),)
    )
    assert_entries(result[0], [3.0, None, 9.0])
    assert_entries(tangent[0], [3.0, None, 3.0])
    assert_entries(tangent[1], [None, None, 1.0])
    assert tangent[2].tolist() == [False] * 3  # a plain Boolean result has PyTorch's tangent


def test_other_layouts_are_refused_as_arguments() -> None:
    padded = mg.from_lengths(torch.randn(2, 3, 4), torch.tensor([1, 3]))
    for x, dim in ((padded.to_jagged(), 0), (padded.to_jagged(), -1), (padded.to_sparse(), 0)):
        with pytest.raises(mg.UnsupportedOperationError, match=r"Map over x\.to_dense\(\)\.$"):
            vmap(lambda v: v.sum(), in_dims=dim)(x)
    with pytest.raises(mg.UnsupportedOperationError, match=r"Map over x\.to_dense\(\)"):
        vmap(lambda pair: pair["x"] * pair["w"], in_dims=({"x": 2, "w": None},))(
            {"x": padded.to_jagged(), "w": torch.ones(1)}
        )
    found = vmap(lambda w: (padded.to_jagged() * w).sum())(torch.ones(2))  # as a constant
    torch.testing.assert_close(found, padded.sum().expand(2))
