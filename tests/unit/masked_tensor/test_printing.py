"""What people see: exact texts, tables for notebooks, and no crash where there is nothing to show."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import inf, leaf, nan, on, poisoned

F32 = torch.float32


@pytest.mark.every
@pytest.mark.parametrize(
    ("entries", "dtype", "text"),
    [
        ([1.5, None, -3.25], F32, "masked([ 1.5000,      --, -3.2500])"),
        ([1.5, None], torch.float64, "masked([1.5000,     --], dtype=torch.float64)"),
        ([2**62, None], torch.int64, "masked([4611686018427387904,                  --])"),
        ([True, None, False], torch.bool, "masked([ True,    --, False])"),
        ([1.5 - 2.5j, None], torch.complex64, "masked([1.5000-2.5000j,             --])"),
        ([nan, None, inf, -inf], F32, "masked([ nan,   --,  inf, -inf])"),
        (2.5, F32, "masked(2.5000)"),
        ([None, None], F32, "masked([--, --])"),
        ([[[1.0, None]], [[None, 2.0]]], F32, "masked([[[1., --]],\n\n        [[--, 2.]]])"),
    ],
)
def test_unspecified_entries_are_printed_as_two_dashes(entries: Any, dtype: torch.dtype, text: str) -> None:
    x = poisoned(entries, dtype)
    assert repr(x) == str(x) == f"{x}" == text


def test_text_of_what_has_no_entries_or_too_many() -> None:
    assert repr(mg.masked(torch.zeros(0, dtype=torch.int32))) == "masked([], dtype=torch.int32)"
    assert repr(mg.masked(torch.zeros(2, 0))) == "masked([], size=(2, 0))"
    assert repr(mg.masked(torch.zeros(2, device="meta"))) == "masked(..., shape=(2,), device='meta')"
    data, even = torch.arange(4000.0).reshape(2, 2000), torch.arange(2000) % 2 == 0
    data[:, 1000], data[0, 1] = 1.25, 1e30  # left out, and unspecified: they do not decide about digits
    assert repr(mg.masked(data, even[None])) == (
        "masked([[   0.,    --,    2., ...,    --, 1998.,    --],\n"
        "        [2000.,    --, 2002., ...,    --, 3998.,    --]])"
    )
    x = mg.from_sparse(torch.sparse_coo_tensor(torch.tensor([[3]]), torch.ones(1), (10**9,)))
    assert f"1 of {10**18} entries" in repr(torch.outer(x, x))


def test_a_scalar_is_formatted_like_a_number() -> None:
    assert f"{poisoned(1.23456):.2f}" == "1.23"
    assert f"{poisoned(7, torch.int64):>4d}" == "   7"
    assert f"{poisoned(None):.2f}" == "--"
    assert f"{poisoned(None)}" == "masked(--, dtype=torch.float64)"
    with pytest.raises(TypeError, match="format"):
        f"{poisoned([1.0, None]):.2f}"


def test_the_place_in_the_graph_or_in_a_transformation_is_shown() -> None:
    x = mg.masked(leaf(1.0, nan, dtype=F32), on(1, 0))
    assert repr(x) == "masked([1., --], requires_grad=True)"
    assert repr(x * 2) == "masked([2., --], grad_fn=<MulBackward0>)"
    texts = []

    def note(values: torch.Tensor) -> torch.Tensor:
        x = mg.masked(values, on(1, 0, 1))
        texts.extend([repr(x), repr(x.amax())])
        return values.sum()

    torch.vmap(note)(torch.ones(2, 3))
    torch.func.grad(note)(torch.ones(3))
    assert [text[:10] for text in texts] == ["masked(..."] * 4
    assert "shape=(3,)" in texts[0]
