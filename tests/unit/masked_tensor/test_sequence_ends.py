"""The first and last positions of each sequence, and all but these: against each sequence alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import nan

LENGTHS = [4, 0, 1, 6, 2]
ALONE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "first": lambda part, n: part[:n],
    "last": lambda part, n: part[max(len(part) - n, 0) :],
    "drop_first": lambda part, n: part[n:],
    "drop_last": lambda part, n: part[: max(len(part) - n, 0)],
}


def batch(layout: torch.layout) -> tuple[Tensor, mg.MaskedTensor]:
    data = torch.randn(len(LENGTHS), 6, 3, dtype=torch.float64)
    for row, length in zip(data, LENGTHS, strict=True):
        row[length:] = nan
    data.requires_grad_()
    return data, mg.from_lengths(data, torch.tensor(LENGTHS), layout=layout)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.parametrize("n", [0, 1, 2, 9])
@pytest.mark.parametrize("name", ALONE)
def test_each_sequence_as_if_it_were_alone(name: str, n: int, layout: torch.layout) -> None:
    data, x = batch(layout)
    found = getattr(x, name)(n)
    assert found.layout == layout
    assert found.shape == (5, min(n, 6) if name in ("first", "last") else max(6 - n, 0), 3)
    noise = torch.randn(found.shape, dtype=torch.float64)
    total = 0 * torch.where(x.mask, data, 0.0).sum()
    for b, length in enumerate(LENGTHS):
        alone = ALONE[name](data[b, :length], n)
        assert found.mask[b].sum() == alone.numel()
        torch.testing.assert_close(found.filled(0.0)[b, : len(alone)], alone)
        total = total + (alone * noise[b, : len(alone)]).sum()
    right = torch.autograd.grad(total, data)[0]
    assert torch.equal(torch.autograd.grad((found.filled(0.0) * noise).sum(), data)[0], right)
    plain = mg.from_lengths(data, torch.tensor(LENGTHS))
    along = getattr(plain.transpose(0, 1), name)(n, dim=0)
    assert torch.equal(along.transpose(0, 1), found.to_dense())
    along = getattr(x.transpose(1, 2), name)(n, -1)
    assert torch.equal(along.transpose(1, 2).to_dense(), found.to_dense())


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_ends_are_compiled_into_one_graph(layout: torch.layout) -> None:
    x = batch(layout)[1].detach()

    def parts(t: Any) -> tuple[Any, ...]:
        return t.first(2), t.last(2), t.drop_first(2), t.drop_last(2), t.first(), t.last()

    compiled: Any = torch.compile(parts, backend="aot_eager", fullgraph=True)
    for found, expected in zip(compiled(x), parts(x), strict=True):
        assert torch.equal(found, expected.to_dense())


def test_the_first_and_the_last_one() -> None:
    data, jagged = batch(torch.jagged)
    for x in (jagged, jagged.to_dense()):
        for name, place in (("first", 0), ("last", -1)):
            found = getattr(x, name)()
            assert found.mask.all(1).tolist() == [length > 0 for length in LENGTHS]
            expected = [data[b, :length][place] for b, length in enumerate(LENGTHS) if length]
            assert torch.equal(found.compressed(), torch.cat(expected))
            assert torch.equal(getattr(x.transpose(0, 1), name)(dim=0), found)
    holes = mg.masked(torch.arange(4.0).reshape(1, 4), torch.tensor([[False, True, True, False]]))
    assert (holes.first().tolist(), holes.last().tolist()) == ([1.0], [2.0])
    for layout in (torch.strided, torch.jagged):
        empty = mg.from_lengths(torch.ones(2, 0, 3), torch.tensor([0, 0]), layout=layout)
        assert [getattr(empty, name)(2).shape for name in ALONE] == [(2, 0, 3)] * 4


@pytest.mark.parametrize("name", ALONE)
def test_sequences_with_holes_and_negative_numbers_are_refused(name: str) -> None:
    holes = mg.masked(torch.ones(2, 3), torch.tensor([[True, False, True], [True, True, False]]))
    with pytest.raises(mg.UndefinedOnMaskedError, match=rf"x\.{name}\(n\).*mg\.from_sequences"):
        getattr(holes, name)(1)
    with pytest.raises(ValueError, match="at least 0, found -1"):
        getattr(holes, name)(-1)
    with pytest.raises(TypeError, match=r"n must be an integer, found float"):
        getattr(holes, name)(1.0)
    with pytest.raises(IndexError):
        getattr(holes, name)(1, 2)
