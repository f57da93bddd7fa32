"""Jagged tensors and padded batches; lengths, the inverse of from_lengths."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import gradient, on, poisoned

D = torch.float64
BATCHES = ([3, 1, 0, 2], [0, 0], [4], [2, 2])


def jagged_of(lengths: list[int], *features: int) -> tuple[Tensor, Tensor]:
    """A nested tensor and the leaf that it was made of."""
    values = torch.randint(0, 100, (sum(lengths), *features)).to(D).requires_grad_()
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(values, offsets), values


EACH_LAYOUT = pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)


@pytest.mark.parametrize(
    ("layout", "features"),
    [
        *itertools.product([torch.jagged, torch.strided], [(), (2,), (2, 3)]),
        (torch.jagged, (0,)),  # a mask without entries has no lengths
    ],
)
@pytest.mark.parametrize("lengths", BATCHES)
def test_there_and_back(lengths: list[int], features: tuple[int, ...], layout: torch.layout) -> None:
    """Padded, or without a copy."""
    jagged, values = jagged_of(lengths, *features)
    x = mg.from_nested(jagged, layout=layout)
    assert (x.layout, tuple(x.shape)) == (layout, (len(lengths), max(lengths), *features))
    for row, known, part in zip(x.filled(-1), x.mask, values.split(lengths), strict=True):
        assert row[: len(part)].equal(part)
        assert known[: len(part)].all()
        assert not known[len(part) :].any()
    back = mg.interop.to_nested(x)
    assert back.layout == torch.jagged
    assert back.offsets().tolist() == jagged.offsets().tolist()
    assert back.values().equal(values)
    assert gradient(back.values() * 3, values).eq(3).all()
    if layout == torch.jagged:
        assert x.values().data_ptr() == back.values().data_ptr() == values.data_ptr()
        assert x.offsets().data_ptr() == back.offsets().data_ptr() == jagged.offsets().data_ptr()


@EACH_LAYOUT
def test_another_ragged_dimension_and_a_size(layout: torch.layout) -> None:
    jagged, values = jagged_of([2, 3], 4)
    x = mg.from_nested(jagged.transpose(1, 2), size=5, layout=layout)
    assert x.shape == (2, 4, 5)
    assert x.filled(0).transpose(1, 2).equal(mg.from_nested(jagged, size=5).filled(0))
    assert mg.interop.lengths(x, dim=2).tolist() == mg.interop.lengths(x, dim=-1).tolist() == [2, 3]
    back = mg.interop.to_nested(x, dim=2)
    assert [tuple(part.shape) for part in back.unbind()] == [(4, 2), (4, 3)]
    assert back.values().equal(values.T)
    with pytest.raises(ValueError, match=r"size must be at least 3, the longest sequence, found 1"):
        mg.from_nested(jagged, size=1)
    if layout == torch.jagged:
        with pytest.raises(ValueError, match=r"dim must be 2, the ragged dimension of x, found 1"):
            mg.interop.to_nested(x)
        with pytest.raises(
            ValueError, match=r"the batch dimension of x must be the first, found dimension 2"
        ):
            mg.interop.to_nested(x.transpose(0, 2), 0)


@EACH_LAYOUT
@pytest.mark.parametrize("lengths", [[2, 2, 2], [2, 0, 1]], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_holes_between_the_sequences(lengths: list[int], layout: torch.layout, turned: bool) -> None:
    base, starts = torch.arange(24.0).reshape(3, 4, 2).requires_grad_(), [1, 0, 2]
    jagged = torch.nested.narrow(base, 1, torch.tensor(starts), torch.tensor(lengths), layout=torch.jagged)
    x = mg.from_nested(jagged.transpose(1, 2) if turned else jagged, layout=layout)
    assert x.layout == layout
    assert mg.interop.lengths(x, 2 if turned else 1).tolist() == lengths
    kept = torch.zeros(3, 4, 2)
    found = x.filled(0).transpose(1, 2) if turned else x.filled(0)
    for i, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        kept[i, start : start + length] = 1
        assert found[i, :length].equal(base[i, start : start + length])
    assert gradient(x, base).equal(kept)


def test_lengths_invert_from_lengths() -> None:
    for shape, dim in (((3, 4), 1), ((3, 4, 2), 1), ((3, 2, 4), 2), ((3, 2, 4), -1), ((3, 4, 0), 1)):
        lengths = torch.tensor([4, 0, 2])
        x = mg.from_lengths(torch.zeros(shape), lengths, dim)
        if 0 in shape:
            with pytest.raises(ValueError, match=r"no features.*keep the lengths"):
                mg.interop.lengths(x, dim)
            continue
        assert mg.interop.lengths(x, dim).equal(lengths)
        assert mg.interop.lengths(mg.masked(torch.zeros(shape), x.mask.contiguous()), dim).equal(lengths)
    assert mg.interop.lengths(mg.masked(torch.zeros(0, 4))).tolist() == []
    assert mg.interop.lengths(mg.masked(torch.zeros(2, 0))).tolist() == [0, 0]
    assert mg.interop.lengths(mg.masked(torch.zeros(2, 3))).tolist() == [3, 3]


def test_masks_that_are_no_padding_are_refused() -> None:
    gap = poisoned([[1.0, 2.0, None], [1.0, None, 3.0]])
    for function in (mg.interop.lengths, mg.interop.to_nested):
        with pytest.raises(
            ValueError, match=r"position 1 of sequence 1 is unspecified and the next one is not"
        ):
            function(gap)
        with pytest.raises(
            ValueError, match=r"position 1 of sequence 0 is specified in some features and not in others"
        ):
            function(poisoned([[[1.0, 1.0], [None, 1.0]]]))
        with pytest.raises(ValueError, match=r"no features.*keep the lengths"):
            function(mg.from_lengths(torch.zeros(3, 4, 0), torch.tensor([4, 0, 2])))
        with pytest.raises(TypeError, match=r"x must be a MaskedTensor, found Tensor"):
            function(torch.ones(2, 2))
        with pytest.raises(TypeError, match=r"strided layout, found torch.sparse_coo"):
            function(gap.to_sparse())
        for dim in (0, 2, -2, -3):
            with pytest.raises(
                ValueError, match=f"dim must be a dimension of x other than 0.* found {dim} for 2"
            ):
                function(gap, dim)


def test_lengths_can_be_compiled() -> None:
    def function(x: mg.MaskedTensor) -> Tensor:
        return mg.interop.lengths(x) * 2

    x = mg.from_lengths(torch.zeros(2, 3), torch.tensor([1, 3]))
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    assert compiled(x).tolist() == [2, 6]
    with pytest.raises(RuntimeError, match=r"not that of padded sequences"):
        compiled(mg.masked(torch.zeros(2, 3), on([1, 0, 1], [0, 0, 0])))


def test_other_layouts_are_refused() -> None:
    with pytest.raises(TypeError, match=r"found a plain tensor of layout torch.strided; .*as_nested_tensor"):
        mg.from_nested(torch.ones(2, 2))
    with pytest.raises(TypeError, match=r"found list"):
        mg.from_nested([torch.ones(2)])
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=r"The PyTorch API of nested tensors", category=UserWarning
        )  # once
        strided = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.strided)
    with pytest.raises(TypeError, match=r"found a nested tensor of layout torch.strided"):
        mg.from_nested(strided)


def test_offsets_that_do_not_fit_and_layouts_that_are_none() -> None:
    jagged = torch.nested.nested_tensor_from_jagged(torch.ones(3), torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"offsets must ascend from 0 to the number of rows, 3"):
        mg.from_nested(jagged, layout=torch.jagged)
    with pytest.raises(ValueError, match=r"layout must be torch.strided or torch.jagged"):
        mg.from_nested(jagged, layout=torch.sparse_coo)
