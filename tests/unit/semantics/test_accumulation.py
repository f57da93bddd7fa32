"""Accumulating writes: what meets at a place is combined over the specified contributions, by deletion."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import inf, nan, on


def test_neither_garbage_nor_a_start_that_is_left_out_is_anybodys_equal() -> None:
    source = torch.tensor([2.0, 2.0], requires_grad=True)
    start = mg.masked(torch.tensor([2.0]), on(1))  # torch counts it: 1 / 3 for each of the two
    start.scatter_reduce(0, torch.zeros(2).long(), source, "amax", include_self=False).sum().backward()
    assert source.grad.tolist() == [0.5, 0.5]
    for garbage in (-inf, 5.0):
        source = torch.tensor([garbage] * 3, requires_grad=True)
        x = mg.masked(torch.tensor([garbage]), on(0))
        result = x.scatter_reduce(0, torch.zeros(3).long(), mg.masked(source, on(1, 0, 1)), "amax")
        assert torch.autograd.grad(result.sum(), source)[0].tolist() == [0.5, 0.0, 0.5]


def test_unspecified_positions_write_nowhere() -> None:
    index = mg.masked(torch.tensor([1, 10**9, 0]), on(1, 0, 1))
    source = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    x = torch.tensor([10.0, 20.0, 30.0])
    for result in (x.scatter_add(0, index, source), x.index_add(0, index, source)):
        assert result.tolist() == [14.0, 21.0, 30.0]
        (gradient,) = torch.autograd.grad(result.sum(), source)
        assert gradient.tolist() == [1.0, 0.0, 1.0]
    result = torch.tensor(5.0).scatter_add(0, mg.masked(torch.tensor(0), on(0)[0]), torch.tensor(1.0))
    assert result.tolist() == 5.0
    assert torch.zeros(0).index_add(0, mg.masked(torch.tensor([7]), on(0)), torch.ones(1)).tolist() == []


@pytest.mark.parametrize(
    ("index", "source"), [(torch.tensor([0]), torch.ones(2, 3)), (torch.tensor([[0]]), torch.ones(1, 3))]
)
def test_index_reduce_names_the_shapes_that_do_not_fit(index: Tensor, source: Tensor) -> None:
    with pytest.raises(IndexError, match="one slice for each"):
        mg.masked(torch.ones(3, 3)).index_reduce(0, index, source, "prod")


def test_of_two_that_write_to_one_place_the_unspecified_gets_no_gradient() -> None:
    source = torch.tensor([1.0, nan], requires_grad=True)
    result = torch.zeros(1).scatter(0, torch.tensor([0, 0]), mg.masked(source, on(1, 0)))
    assert torch.autograd.grad(result.filled(0.0).sum(), source)[0][1] == 0


def test_a_source_may_be_larger_than_its_index() -> None:
    old, new = (torch.rand(*sizes, dtype=torch.float64, requires_grad=True) for sizes in ((2, 3), (3, 5)))
    mask, index = torch.rand(3, 5) < 0.7, torch.tensor([[0, 2, 0, 1], [1, 1, 0, 2]])
    for reduce in ("amax", "sum"):
        gradients = []
        for source in (mg.masked(new, mask), torch.where(mask, new, -torch.inf if reduce == "amax" else 0.0)):
            found = torch.scatter_reduce(mg.masked(old), 1, index, source, reduce).filled(0.0)
            gradients.append(torch.autograd.grad(found.square().sum(), [old, new]))
        torch.testing.assert_close(*gradients)
