"""torch.testing.assert_close on MaskedTensors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import maskgrad as mg

MASK = torch.tensor([[True, False, True], [True, True, False]])
DATA = torch.tensor([[1.0, math.nan, 3.0], [4.0, 5.0, math.inf]])
LAYOUTS = ["strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"]


def masked(layout: str = "strided", change: float = 0.0, garbage: float = 1e38) -> mg.MaskedTensor:
    mask = torch.tensor([[True, False, False], [True, True, False]]) if layout == "jagged" else MASK
    data = torch.where(mask, DATA.nan_to_num(7.0, 7.0), garbage)
    data[1, 0] += change
    x = mg.masked(data, mask)
    if layout == "strided":
        return x
    blocks = (1, 1) if layout in ("sparse_bsr", "sparse_bsc") else None
    return (
        x.to_jagged() if layout == "jagged" else x.to_sparse(layout=getattr(torch, layout), blocksize=blocks)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_specified_entries_are_compared(layout: str) -> None:
    assert_close(masked(layout), masked(layout, garbage=math.nan))
    assert_close(masked(layout), masked(layout, change=1e-7))
    assert_close(masked(layout), masked(layout, change=1.0), atol=1.0, rtol=0.0)
    with pytest.raises(
        AssertionError, match=r"(?s)not close.*Mismatched elements: 1 / 6.*at index \(1, 0\)"
    ) as found:
        assert_close(masked(layout), masked(layout, change=1.0))
    assert "masks" not in str(found.value)


def test_masks_come_first() -> None:
    other = mg.masked(torch.full((2, 3), 9.0), MASK.logical_xor(torch.tensor([False, True, False])))
    with pytest.raises(AssertionError, match=r"(?s)^The masks do not match.*Mismatched elements: 2 / 6"):
        assert_close(masked(), other)
    with pytest.raises(AssertionError, match=r"^The masks do not match"):  # nothing left to compare
        assert_close(masked(), mg.masked(DATA, torch.zeros(2, 3, dtype=torch.bool)))


def test_attributes() -> None:
    with pytest.raises(
        AssertionError, match=r"attribute 'layout' do not match: torch.strided != torch.sparse_coo"
    ):
        assert_close(masked(), masked("sparse_coo"))
    assert_close(masked(), masked("sparse_coo"), check_layout=False)
    with pytest.raises(AssertionError, match=r"attribute 'shape' do not match: torch.Size\(\[2, 3\]\)"):
        assert_close(masked(), masked()[:1])
    with pytest.raises(AssertionError, match="attribute 'dtype' do not match"):
        assert_close(masked(), masked().double())
    assert_close(masked(), masked().double(), check_dtype=False)


def test_nan() -> None:
    x, y = (mg.masked(torch.tensor([math.nan, 1.0]), torch.tensor([True, True])) for _ in range(2))
    with pytest.raises(AssertionError, match="not close"):
        assert_close(x, y)
    assert_close(x, y, equal_nan=True)


def test_containers_and_messages() -> None:
    def tree(change: float = 0.0) -> Any:
        return {"a": [masked(), torch.ones(2)], "b": (masked("sparse_csr", change), 1.0)}

    assert_close(tree(), tree())
    with pytest.raises(AssertionError, match=r"The failure occurred for item \['b'\]\[0\]"):
        assert_close(tree(), tree(1.0))
    with pytest.raises(AssertionError, match=r"^mine: Tensor-likes are not close"):
        assert_close(masked(), masked(change=1.0), msg=lambda text: f"mine: {text}")


def test_a_plain_tensor_has_no_mask_to_compare() -> None:
    for pair in ((masked(), masked().filled(0.0)), (masked().filled(0.0), masked())):
        with pytest.raises(
            TypeError, match=r"(?s)found .*Tensor.*Use assert_close\(x\.filled\(value\), plain\)"
        ):
            assert_close(*pair)


def test_whole_numbers_booleans_and_gradients() -> None:
    for dtype in (torch.int64, torch.bool, torch.bfloat16, torch.complex64):
        assert_close(masked().to(dtype), masked(garbage=0.0).to(dtype))
    leaf = torch.ones(2, 3, requires_grad=True)
    assert_close(mg.masked(leaf, MASK) * 2, mg.masked(torch.full((2, 3), 2.0), MASK))
