"""Random patterns of every layout are accepted, damaged ones refused, before anything is built."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskgrad as mg
from maskgrad.masked_tensor.tensor import MaskedTensor, rebuild_stored
from maskgrad.patterns import StoredPattern
from maskgrad.patterns.conversion import LAYOUTS, pattern_of_places
from tests.effort import examples

SPARSE = (*LAYOUTS[1:], torch.jagged)
BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)
#: What a refusal may be.
REFUSALS = (ValueError, IndexError, TypeError)


@st.composite
def tensors(draw: Any) -> MaskedTensor:
    """A MaskedTensor of any layout, shape and pattern."""
    layout = draw(st.sampled_from(SPARSE))
    height, width = draw(st.sampled_from([(1, 1), (2, 3), (3, 1)])) if layout in BLOCKED else (1, 1)
    if layout == torch.sparse_coo:
        grid = tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)))
    else:
        grid = (draw(st.integers(0, 4)), draw(st.integers(0, 4)))
    number = torch.Size(grid).numel()
    bits = draw(st.lists(st.booleans(), min_size=number, max_size=number))
    mask = torch.tensor(bits, dtype=torch.bool).reshape(grid)
    dense: tuple[int, ...] = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    if layout in BLOCKED:
        mask = mask.repeat_interleave(height, 0).repeat_interleave(width, 1)
    if layout == torch.jagged:  # the first positions of each sequence
        mask = torch.arange(grid[1]) < mask.sum(1, keepdim=True)
    places = mask.nonzero().T
    blocksize = (height, width) if layout in BLOCKED else None
    pattern, _ = pattern_of_places(places, tuple(mask.shape), layout, blocksize)
    values = torch.arange(places.shape[1] * torch.Size(dense).numel(), dtype=torch.float64)
    return MaskedTensor(pattern.gathered(values.reshape(places.shape[1], *dense)), pattern)


def parts(x: MaskedTensor) -> tuple[Any, Any, Any]:
    return x._values, tuple(x._pattern.facts()), x._pattern.tensors()


def saved_and_loaded(x: MaskedTensor) -> MaskedTensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@settings(max_examples=examples(60))
@given(tensors())
def test_what_is_right_is_accepted(x: MaskedTensor) -> None:
    for again in (rebuild_stored(*parts(x)), saved_and_loaded(x)):
        assert again.layout == x.layout
        assert again.shape == x.shape
        assert torch.equal(again, x)
    assert isinstance(x._pattern, StoredPattern)
    assert int(x.mask.sum()) == x._values.numel() == x.num_specified()


@st.composite
def damaged(draw: Any) -> tuple[Any, Any, Any]:
    """The parts of a MaskedTensor with one thing wrong."""
    x = draw(
        tensors().filter(
            lambda x: (
                # the tensors of a jagged pattern are damaged one by one in test_sequences
                x.layout != torch.jagged and x._pattern.tensors()[-1].numel() > 0 and x._values.numel() > 0
            )
        )
    )
    values, (layout, sizes, blocksize), indices = parts(x)
    indices = [t.clone() for t in indices]
    last = indices[-1]
    kind = draw(
        st.sampled_from(["below", "above", "twice", "float", "fewer values", "sizes", "tensors", "order"])
    )
    at = draw(st.integers(0, last.numel() - 1))
    if kind == "below":
        last.view(-1)[at] = -1
    elif kind == "above":
        last.view(-1)[at] = max(sizes)
    elif kind == "twice":
        indices = [torch.cat([t, t[..., -1:]], -1) for t in indices]
        values = torch.cat([values, values[-1:]])
    elif kind == "float":
        indices[-1] = last.double()
    elif kind == "fewer values":
        values = values[:-1]
    elif kind == "sizes":
        sizes = (-3, *sizes[1:])
    elif kind == "tensors":
        indices = [*indices, last]
    elif layout == "sparse_coo":
        indices[0] = torch.cat([last, last], -1)
        values = torch.cat([values, values])
    else:
        indices[0] = indices[0].flip(-1)
    return values, (layout, sizes, blocksize), tuple(indices)


@settings(max_examples=examples(150))
@given(damaged())
def test_what_is_damaged_is_refused(parts: tuple[Any, Any, Any]) -> None:
    with pytest.raises(REFUSALS) as caught:
        rebuild_stored(*parts)
    assert len(str(caught.value)) > 15


@settings(max_examples=examples(40))
@given(damaged())
def test_a_damaged_file_is_not_loaded(parts: tuple[Any, Any, Any]) -> None:
    class Broken:
        def __reduce__(self) -> Any:
            return rebuild_stored, parts

    file = io.BytesIO()
    torch.save(Broken(), file)
    file.seek(0)
    with pytest.raises((*REFUSALS, RuntimeError)):
        torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    "facts",
    [
        ("strided", (2,), None), ("sparse_xyz", (2,), None), ("__class__", (2,), None), None, ("sparse_coo", (2,)),
        ("sparse_coo", (2,), (1, 1)), ("sparse_csr", (2, 2), (1, 1)), ("sparse_coo", (), None),
        ("sparse_coo", (2**40, 2**40), None),
    ],
)  # fmt: skip
def test_facts_that_are_none_are_refused(facts: Any) -> None:
    with pytest.raises(REFUSALS):
        rebuild_stored(torch.zeros(1), facts, (torch.zeros(1, 1, dtype=torch.int64),))


@pytest.mark.parametrize("values", [3.0, torch.eye(2).to_sparse(), torch.zeros(1, device="meta")])
def test_values_that_are_no_plain_tensor_are_refused(values: Any) -> None:
    with pytest.raises(REFUSALS):
        rebuild_stored(values, ("sparse_coo", (2,), None), (torch.zeros(1, 1, dtype=torch.int64),))


def test_narrow_indices_are_widened() -> None:
    size = 3_000_000  # whose square no int32 can number
    at = torch.tensor([[0, 2_999_999], [5, 2_999_998]], dtype=torch.int32)
    x = rebuild_stored(torch.ones(2), ("sparse_coo", (size, size), None), (at,))
    assert (x * 2)[2_999_999, 2_999_998].item() == 2
    t = torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2], dtype=torch.int32),
        torch.tensor([1, 0], dtype=torch.int32),
        torch.ones(2),
        (2, 2),
    )
    assert mg.from_sparse(t).T.sum(0).tolist() == [1.0, 1.0]
