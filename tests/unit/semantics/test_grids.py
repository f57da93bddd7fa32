"""Operands arranged by one function: storage rewritten, sums to a size, bits combined."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import inf, nan, on


def test_as_strided_scatter_writes_where_as_strided_would_read() -> None:
    x = torch.tensor([[1.0, nan], [3.0, 4.0]], requires_grad=True)
    src = torch.tensor([inf, 6.0], requires_grad=True)
    result = torch.as_strided_scatter(
        mg.masked(x, on([1, 0], [1, 1])), mg.masked(src, on(0, 1)), (2,), (3,), 0
    )
    assert result.tolist() == [[None, None], [3.0, 6.0]]
    result.sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert src.grad.tolist() == [0.0, 1.0]


def test_as_strided_scatter_has_the_derivative_that_torch_has_not() -> None:
    # torch 2.13 sends to x what belongs to the entries that were written over
    x, src = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 3), (2, 2)))
    mask = on([1, 0, 1], [1, 1, 0], [0, 1, 1])
    assert torch.autograd.gradcheck(
        lambda x, src: torch.as_strided_scatter(mg.masked(x, mask), src, (2, 2), (1, 2), 1).filled(0.0),
        (x, src),
    )


def test_sum_to_size() -> None:
    x = mg.masked(torch.tensor([[1.0, nan, 3.0], [nan, inf, 5.0]]), on([1, 0, 1], [0, 0, 1]))
    assert x.sum_to_size(3).tolist() == [1.0, None, 8.0]
    assert x.sum_to_size((2, 1)).tolist() == [[4.0], [5.0]]
    assert x.sum_to_size(()).tolist() == 9.0
    assert x.sum_to_size(2, 3).mask.equal(x.mask)
    assert mg.masked(on(1, 0)[0], on(1)[0]).sum_to_size(()).dtype == torch.int64  # as torch


def test_the_hash_is_that_of_the_entries_that_are_left() -> None:
    x, mask = torch.tensor([[1.0, nan, -3.0], [nan, inf, nan]]), on([1, 0, 1], [0, 0, 0])
    found = torch.hash_tensor(mg.masked(x, mask), 1)
    assert found.mask.tolist() == [True, False]
    assert found.filled(torch.tensor(0, dtype=torch.uint64))[0] == torch.hash_tensor(x[0, ::2])


def test_halves_of_a_spectrum_change_places() -> None:
    x = mg.masked(torch.tensor([0.0, nan, 2.0, 3.0, 4.0]), on(1, 0, 1, 1, 1))
    assert torch.fft.fftshift(x).tolist() == [3.0, 4.0, 0.0, None, 2.0]
    assert torch.fft.ifftshift(torch.fft.fftshift(x)).tolist() == x.tolist()


@pytest.mark.parametrize("resize", [lambda x: x.resize_(1), lambda x: x.resize_as_(torch.ones(1))])
def test_storage_is_not_laid_out_anew(resize) -> None:  # type: ignore[no-untyped-def]
    x = mg.masked(torch.ones(2), on(1, 0))
    with pytest.raises(mg.UndefinedOnMaskedError, match="reshape"):
        resize(x)
    assert x.tolist() == [1.0, None]


def test_positions_and_derivatives_of_the_inside() -> None:
    rows, columns = torch.unravel_index(mg.masked(torch.tensor([5, -99]), on(1, 0)), (2, 3))
    assert (rows.tolist(), columns.tolist()) == ([1, None], [2, None])
    grad = mg.masked(torch.tensor([1.0, nan]), on(1, 0))
    assert torch.ops.aten.native_dropout_backward(grad, on(1, 1), 2.0).tolist() == [2.0, None]
    assert torch.ops.aten.slice(grad, 0, 1).tolist() == [None]
