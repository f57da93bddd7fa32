"""Single sequences of a jagged batch, and what a batch remembers of others."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from maskgrad.patterns import JaggedPattern

LENGTHS = torch.tensor([3, 0, 4])
NAN = float("nan")


def batch(*features: int) -> tuple[mg.MaskedTensor, mg.MaskedTensor, torch.Tensor]:
    """The same data jagged and with a Boolean mask, NaN in the padding, and the leaf of both."""
    torch.manual_seed(0)
    data = torch.randn(3, 4, *features, dtype=torch.float64)
    data[0, 3:], data[1] = NAN, NAN
    data.requires_grad_()
    return mg.from_lengths(data, LENGTHS, layout=torch.jagged), mg.from_lengths(data, LENGTHS), data


def test_iteration_gives_each_sequence() -> None:
    rows, masked, data = batch(2)
    for found, expected in zip(rows, masked, strict=True):
        assert torch.equal(found.mask, expected.mask)
        torch.testing.assert_close(found.filled(0.0), expected.filled(0.0))
    sum((x * x).sum() for x in rows).backward()  # type: ignore[union-attr]
    torch.testing.assert_close(data.grad, torch.where(data.isnan(), 0, 2 * data.detach()))
    assert list(rows[:0]) == []
    assert len(list(rows[:1])) == 1
    assert [part.shape for part in rows.transpose(0, 1)] == [(3, 2)] * 4


def test_only_the_last_of_other_batches_is_remembered() -> None:
    """A table of positions lives long, and meets batches of all lengths."""
    table = mg.from_lengths(torch.ones(3, 4), LENGTHS, layout=torch.jagged)
    pattern = table._pattern
    assert isinstance(pattern, JaggedPattern)
    sizes = []
    for _ in range(3):
        for lengths in ([3, 0, 4], [1, 2, 3]):
            other = mg.from_lengths(torch.ones(3, 4), torch.tensor(lengths), layout=torch.jagged)
            common = torch.minimum(torch.tensor(lengths), LENGTHS)
            assert torch.equal((table + other).lengths(), common)
            assert torch.equal((table * other).lengths(), common)
        sizes.append(len(pattern._memory))
    assert sizes[0] == sizes[1] == sizes[2]


def test_whole_sequences_that_are_not_known_are_empty() -> None:
    rows, masked, data = batch(2)
    known = torch.tensor([True, True, False])[:, None, None]
    weights = torch.arange(6.0, dtype=torch.float64).reshape(3, 1, 2)
    found, expected = (x * mg.masked(weights, known) for x in (rows, masked))
    assert found.layout == torch.jagged
    assert found.lengths().tolist() == [3, 0, 0]
    assert torch.equal(found.mask, expected.mask)
    gradients = [torch.autograd.grad((x * x).sum(), data)[0] for x in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("position", [-1, 4])
def test_a_position_that_is_not_there_is_an_error(position: int) -> None:
    rows, masked, _ = batch(2)
    index = torch.full((3, 1, 2), position)
    for x in (rows, masked):
        with pytest.raises(RuntimeError, match="out of bounds"):
            x.gather(1, index)


def test_a_condition_on_the_same_rows_selects_entries() -> None:
    data = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([2, 0, 4])
    x, boolean = (mg.from_lengths(data, lengths, layout=layout) for layout in (torch.jagged, torch.strided))
    for select in (lambda t: t[t > 0], lambda t: t.masked_select(t > 0), lambda t: t[t.amax(2) > 0]):
        found, expected = select(x), select(boolean)
        assert torch.equal(found.mask, expected.mask)
        torch.testing.assert_close(found.filled(0), expected.filled(0))
        gradients = [
            torch.autograd.grad(y.square().sum(), data, retain_graph=True)[0] for y in (found, expected)
        ]
        torch.testing.assert_close(*gradients)
    other = mg.from_lengths(data.detach(), torch.tensor([1, 0, 4]), layout=torch.jagged)
    with pytest.raises(TypeError, match=r"Use index\.filled\(False\)"):
        x[other > 0]


def test_one_sequence_is_read_at_the_places_of_several() -> None:
    data = torch.randn(1, 4, 2, dtype=torch.float64, requires_grad=True)
    places, lengths = torch.randint(0, 3, (3, 4, 2)), torch.tensor([2, 0, 4])
    x, boolean = (
        mg.from_lengths(data, torch.tensor([3]), layout=layout) for layout in (torch.jagged, torch.strided)
    )
    for index in (places, mg.from_lengths(places, lengths, layout=torch.jagged)):
        on_mask = index if index is places else mg.masked(places, index.mask)
        found, expected = x.take_along_dim(index, 1), boolean.take_along_dim(on_mask, 1)
        assert torch.equal(found.mask, expected.mask)
        torch.testing.assert_close(found.filled(0), expected.filled(0))
        gradients = [
            torch.autograd.grad(y.square().sum(), data, retain_graph=True)[0] for y in (found, expected)
        ]
        torch.testing.assert_close(*gradients)


def test_a_position_out_of_bounds_is_named_with_its_dimension() -> None:
    mask = torch.arange(2) < torch.tensor([[2, 1], [0, 2]])[..., None]
    x = mg.masked(torch.randn(2, 2, 2), mask).to_sparse(layout=torch.jagged)
    for position in (2, -3):
        with pytest.raises(
            IndexError, match=f"index {position} is out of bounds for dimension 2 with size 2"
        ):
            x[:, :, position]
