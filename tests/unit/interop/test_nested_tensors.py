"""Jagged tensors and padded batches; lengths, the inverse of from_lengths."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import assert_entries, gradient, on, poisoned

D = torch.float64
BATCHES = ([3, 1, 0, 2], [0, 0], [4], [2, 2])


def jagged_of(lengths: list[int], *features: int, dtype: torch.dtype = D) -> tuple[Tensor, Tensor]:
    """A nested tensor and the leaf that it was made of."""
    values = torch.randint(0, 100, (sum(lengths), *features)).to(dtype)
    if dtype.is_floating_point:
        values.requires_grad_()
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(values, offsets), values


@pytest.mark.parametrize("features", [(), (2,), (2, 3), (0,)])
@pytest.mark.parametrize("lengths", BATCHES)
def test_padded_by_hand(lengths: list[int], features: tuple[int, ...]) -> None:
    jagged, values = jagged_of(lengths, *features)
    x = mg.from_nested(jagged)
    assert x.shape == (len(lengths), max(lengths), *features)
    parts = values.split(lengths)
    for b, (part, length) in enumerate(zip(parts, lengths, strict=True)):
        assert x.mask[b, :length].all()
        assert not x.mask[b, length:].any()
        assert x.filled(-1)[b, :length].equal(part)
        assert (x.filled(-1)[b, length:] == -1).all()


@pytest.mark.parametrize("lengths", BATCHES)
def test_there_and_back(lengths: list[int]) -> None:
    jagged, values = jagged_of(lengths, 2)
    x = mg.from_nested(jagged)
    assert mg.interop.lengths(x).tolist() == lengths
    back = mg.interop.to_nested(x)
    assert back.layout == torch.jagged
    assert back.offsets().tolist() == jagged.offsets().tolist()
    assert back.values().equal(values)
    (grad,) = torch.autograd.grad((back.values() * 3).sum(), values)
    assert (grad == 3).all()


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.complex64], ids=str
)
def test_dtypes(dtype: torch.dtype) -> None:
    jagged, values = jagged_of([2, 1], dtype=dtype)
    x = mg.from_nested(jagged)
    assert x.dtype == dtype
    assert mg.interop.to_nested(x).values().equal(values)


def test_gradients_flow_to_a_nested_leaf_and_to_its_parts() -> None:
    leaf = torch.nested.nested_tensor([[1.0, 2.0], [3.0]], layout=torch.jagged, requires_grad=True)
    (mg.from_nested(leaf).mean(1).sum() * 2).backward()
    assert [part.tolist() for part in leaf.grad.unbind()] == [[1.0, 1.0], [2.0]]
    parts = [torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)]
    x = mg.from_nested(torch.nested.as_nested_tensor(parts, layout=torch.jagged))
    (x * torch.tensor([[1.0, 2.0], [3.0, float("nan")]])).sum().backward()
    assert [part.grad.tolist() for part in parts] == [[1.0, 2.0], [3.0]]


def test_derivatives_by_finite_differences() -> None:
    values = torch.rand(4, 2, dtype=D, requires_grad=True)
    offsets = torch.tensor([0, 3, 4])

    def there(values: Tensor) -> Tensor:
        jagged = torch.nested.nested_tensor_from_jagged(values, offsets)
        return (mg.from_nested(jagged) ** 3).mean(1).filled(0)

    def back(padded: Tensor) -> Tensor:
        return mg.interop.to_nested(mg.from_lengths(padded, torch.tensor([3, 1]))).values() ** 3

    padded = torch.rand(2, 3, 2, dtype=D, requires_grad=True)
    for function, data in ((there, values), (back, padded)):
        assert torch.autograd.gradcheck(function, data)
        with pytest.raises(
            NotImplementedError, match=r"_nested"
        ):  # PyTorch has none, and is not silent about it
            torch.autograd.gradgradcheck(function, data)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e38])
def test_nothing_under_the_padding_gets_out(garbage: float) -> None:
    data = torch.tensor([[1.0, garbage], [3.0, 4.0]], dtype=D, requires_grad=True)
    jagged = mg.interop.to_nested(mg.from_lengths(data, torch.tensor([1, 2])))
    assert jagged.values().tolist() == [1.0, 3.0, 4.0]
    with torch.autograd.detect_anomaly(check_nan=True):
        (jagged.values() ** 2).sum().backward()
    assert data.grad.tolist() == [[2.0, 0.0], [6.0, 8.0]]


def test_other_ragged_dimensions() -> None:
    jagged, values = jagged_of([2, 3], 4)
    x = mg.from_nested(jagged.transpose(1, 2))
    assert x.shape == (2, 4, 3)
    assert mg.interop.lengths(x, dim=2).tolist() == [2, 3]
    assert mg.interop.lengths(x, dim=-1).tolist() == [2, 3]
    assert x.filled(0).transpose(1, 2).equal(mg.from_nested(jagged).filled(0))
    back = mg.interop.to_nested(x, dim=2)
    assert [tuple(part.shape) for part in back.unbind()] == [(4, 2), (4, 3)]
    assert back.values().equal(values.T)


def test_holes_between_the_sequences() -> None:
    base = torch.arange(12.0).reshape(3, 4).requires_grad_()
    jagged = torch.nested.narrow(
        base, 1, torch.tensor([1, 0, 2]), torch.tensor([2, 0, 1]), layout=torch.jagged
    )
    x = mg.from_nested(jagged)
    assert_entries(x, [[1.0, 2.0], [None, None], [10.0, None]])
    assert gradient(x, base).nonzero().tolist() == [[0, 1], [0, 2], [2, 2]]


@pytest.mark.parametrize("lengths", [[2, 2, 2], [2, 0, 1]], ids=str)
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_holes_at_another_ragged_dimension(lengths: list[int], layout: torch.layout) -> None:
    base = torch.arange(24.0).reshape(3, 4, 2)
    starts = [1, 0, 2]
    narrowed = torch.nested.narrow(
        base, 1, torch.tensor(starts), torch.tensor(lengths), layout=torch.jagged
    ).transpose(1, 2)
    x = mg.from_nested(narrowed, size=3, layout=layout)
    assert (x.layout, tuple(x.shape)) == (layout, (3, 2, 3))
    assert mg.interop.lengths(x, 2).tolist() == lengths
    for part, start, length, whole in zip(x.to_dense(), starts, lengths, base, strict=True):
        assert part.filled(0)[:, :length].equal(whole[start : start + length].T)


def test_a_size_may_be_given() -> None:
    jagged, _ = jagged_of([2, 1])
    assert mg.from_nested(jagged, size=5).shape == (2, 5)
    assert mg.interop.lengths(mg.from_nested(jagged, size=5)).tolist() == [2, 1]
    with pytest.raises(ValueError, match=r"size must be at least 2, the longest sequence, found 1"):
        mg.from_nested(jagged, size=1)


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


def test_what_is_not_jagged_is_refused() -> None:
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


@pytest.mark.parametrize("features", [(), (2,), (2, 3), (0,)])
@pytest.mark.parametrize("lengths", BATCHES)
def test_to_the_jagged_layout_and_back_without_copying(lengths: list[int], features: tuple[int, ...]) -> None:
    jagged, values = jagged_of(lengths, *features)
    x = mg.from_nested(jagged, layout=torch.jagged)
    assert x.layout == torch.jagged
    padded = mg.from_nested(jagged)
    assert x.shape == padded.shape
    assert x.mask.equal(padded.mask)
    assert x.filled(0).equal(padded.filled(0))
    assert x.values().data_ptr() == values.data_ptr()
    assert x.offsets().data_ptr() == jagged.offsets().data_ptr()
    assert mg.interop.lengths(x).tolist() == lengths
    back = mg.interop.to_nested(x)
    assert back.values().data_ptr() == values.data_ptr()
    assert back.offsets().data_ptr() == jagged.offsets().data_ptr()
    assert gradient(back.values() * 3, values).eq(3).all()


def test_jagged_at_other_dimensions() -> None:
    jagged, values = jagged_of([2, 3], 4)
    x = mg.from_nested(jagged.transpose(1, 2), size=5, layout=torch.jagged)
    assert x.shape == (2, 4, 5)
    assert x.filled(0).equal(mg.from_nested(jagged.transpose(1, 2), size=5).filled(0))
    assert mg.interop.lengths(x, -1).tolist() == [2, 3]
    back = mg.interop.to_nested(x, dim=2)
    assert back.values().data_ptr() == values.data_ptr()
    assert [tuple(part.shape) for part in back.unbind()] == [(4, 2), (4, 3)]
    with pytest.raises(ValueError, match=r"dim must be 2, the ragged dimension of x, found 1"):
        mg.interop.to_nested(x)
    with pytest.raises(ValueError, match=r"the batch dimension of x must be the first, found dimension 2"):
        mg.interop.to_nested(x.transpose(0, 2), 0)


def test_holes_are_left_out_of_the_jagged_layout() -> None:
    base = torch.arange(12.0).reshape(3, 4).requires_grad_()
    jagged = torch.nested.narrow(
        base, 1, torch.tensor([1, 0, 2]), torch.tensor([2, 0, 1]), layout=torch.jagged
    )
    x = mg.from_nested(jagged, layout=torch.jagged)
    assert x.values().tolist() == [1.0, 2.0, 10.0]
    assert gradient(x, base).nonzero().tolist() == [[0, 1], [0, 2], [2, 2]]


def test_offsets_that_do_not_fit_and_layouts_that_are_none() -> None:
    jagged = torch.nested.nested_tensor_from_jagged(torch.ones(3), torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"offsets must ascend from 0 to the number of rows, 3"):
        mg.from_nested(jagged, layout=torch.jagged)
    with pytest.raises(ValueError, match=r"layout must be torch.strided or torch.jagged"):
        mg.from_nested(jagged, layout=torch.sparse_coo)
