"""MaskedTensors under names of plain tensors: there and back on every layout, and nothing in a file is trusted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad.interop import from_tensors, to_tensors
from tests.poison import assert_entries, poisoned

LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]


def sample() -> mg.MaskedTensor:
    return poisoned([[1.0, None, 3.0, None], [None, None, 2.0, 0.0]])


def test_there_and_back() -> None:
    x, bias = sample(), torch.zeros(2)
    parts = to_tensors({"layer.x": x, "bias": bias})
    assert list(parts) == ["layer.x::values", "layer.x::mask", "bias"]
    assert parts["bias"] is bias
    assert parts["layer.x::values"].tolist() == [
        [1.0, 0.0, 3.0, 0.0],
        [0.0, 0.0, 2.0, 0.0],
    ]  # no garbage in a file
    back = from_tensors(parts)
    assert list(back) == ["layer.x", "bias"]
    assert_entries(back["layer.x"], x.tolist())


@pytest.mark.layouts
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_sparse_layouts(layout: torch.layout) -> None:
    blocks = {"blocksize": (1, 1)} if "bs" in str(layout) else {}
    x = sample().to_sparse(layout=layout, **blocks)
    parts = to_tensors({"x": x})
    assert all(type(t) is torch.Tensor and t.is_contiguous() for t in parts.values())
    back: Any = from_tensors(dict(reversed(parts.items())))["x"]
    assert back.layout is layout
    assert back.tolist() == x.tolist()


def test_jagged_and_empty_ones() -> None:
    jagged = mg.from_lengths(torch.ones(3, 4, 2), torch.tensor([4, 0, 1]), layout=torch.jagged)
    empty = mg.masked(torch.empty(0, 3), torch.empty(0, 3, dtype=torch.bool))
    expanded = mg.masked(torch.ones(2, 3, dtype=torch.int64), torch.tensor([[True, False, True]]))
    given = {"jagged": jagged, "empty": empty, "expanded": expanded, "number": poisoned(None)}
    back: Any = from_tensors(to_tensors(given))
    assert back["jagged"].layout is torch.jagged
    assert back["jagged"].tolist() == jagged.tolist()
    assert back["empty"].shape == (0, 3)
    assert back["expanded"].tolist() == [[1, None, 1]] * 2
    assert back["number"].tolist() is None
    assert from_tensors(to_tensors({})) == {}


@pytest.mark.every
@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (sample(), TypeError, "expects tensors by name.*found MaskedTensor.*give a tensor a name"),
        ({0: sample()}, TypeError, "names must be strings, found 0"),
        ({"x": [1.0]}, TypeError, "'x' must be a Tensor or MaskedTensor, found list"),
        ({"x::mask": torch.ones(2)}, ValueError, "'x::mask' must not contain '::'"),
    ],
)
def test_invalid_names_and_values_are_refused(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        to_tensors(given)


@pytest.mark.every
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x::mask": None}, "must have the parts x::values and x::mask, .* found x::values$"),
        ({"x::extra": torch.ones(1)}, "found x::extra, x::mask, x::values"),
        ({"x::mask": torch.tensor([True])[:0]}, "mask"),
        ({"x": torch.ones(1)}, "'x' is a plain tensor, but has the parts 'mask', 'values'; rename one"),
        ({"x::sparse_coo.values": torch.ones(1)}, "or those of one other layout"),
        ({"s::sparse_csr.0": None}, "must have the parts values, sizes and 0, 1"),
        ({"s::sparse_csr.sizes": torch.ones(2)}, "must be a list of integers"),
        ({"s::sparse_csr.1": torch.tensor([7, 0, 0])}, "indices|positions|columns|lie|7"),
    ],
)
def test_a_file_that_contradicts_itself(change: dict[str, Any], words: str) -> None:
    x = poisoned([[1.0, None, 3.0], [None, None, 2.0]])
    parts: dict[str, Any] = {**to_tensors({"x": x, "s": x.to_sparse(layout=torch.sparse_csr)}), **change}
    with pytest.raises((ValueError, TypeError, IndexError), match=words):
        from_tensors({name: tensor for name, tensor in parts.items() if tensor is not None})
    with pytest.raises(TypeError, match="'x' must be a Tensor, found int"):
        from_tensors({"x": 1})  # type: ignore[dict-item]
