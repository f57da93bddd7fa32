"""Single sequences of a jagged batch, and entries at positions and by conditions."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg

LENGTHS = torch.tensor([3, 0, 4])


def batch() -> tuple[mg.MaskedTensor, mg.MaskedTensor, torch.Tensor]:
    """The same data jagged and with a Boolean mask, NaN in the padding, and the leaf of both."""
    data = torch.randn(3, 4, 2, dtype=torch.float64)
    data[torch.arange(4) >= LENGTHS[:, None]] = torch.nan
    data.requires_grad_()
    return mg.from_lengths(data, LENGTHS, layout=torch.jagged), mg.from_lengths(data, LENGTHS), data


def assert_same(found: mg.MaskedTensor, expected: mg.MaskedTensor, data: torch.Tensor) -> None:
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.filled(0.0), expected.filled(0.0))
    totals = [y.square().sum() for y in (found, expected)]
    gradients = [torch.autograd.grad(y, data, retain_graph=True, materialize_grads=True)[0] for y in totals]
    torch.testing.assert_close(*gradients)


def test_iteration_gives_each_sequence() -> None:
    rows, masked, data = batch()
    for found, expected in zip(rows, masked, strict=True):
        assert_same(found, expected, data)
    assert list(rows[:0]) == []
    assert len(list(rows[:1])) == 1
    assert [part.shape for part in rows.transpose(0, 1)] == [(3, 2)] * 4


def test_conditions_and_positions_read_entries() -> None:
    rows, masked, data = batch()
    places = torch.randint(0, 3, (3, 4, 2))
    jagged = mg.from_lengths(places, torch.tensor([2, 0, 4]), layout=torch.jagged)
    for read in (
        lambda t: t[t > 0],
        lambda t: t.masked_select(t > 0),
        lambda t: t[t.amax(2) > 0],
        lambda t: t[:1].take_along_dim(places, 1),  # one sequence at the places of several
        lambda t: t[:1].take_along_dim(jagged if t is rows else mg.masked(places, jagged.mask), 1),
    ):
        assert_same(read(rows), read(masked), data)
    other = mg.from_lengths(data.detach(), torch.tensor([1, 0, 4]), layout=torch.jagged)
    with pytest.raises(TypeError, match=r"Use index\.filled\(False\)"):
        rows[other > 0]


def test_a_position_out_of_bounds_is_an_error() -> None:
    rows, masked, _ = batch()
    for position in (-1, 4):
        for x in (rows, masked):
            with pytest.raises(RuntimeError, match="out of bounds"):
                x.gather(1, torch.full((3, 1, 2), position))
    for position in (2, -3):
        with pytest.raises(
            IndexError, match=f"index {position} is out of bounds for dimension 2 with size 2"
        ):
            rows[:, :, position]


@pytest.mark.parametrize("position", [2, -3])
def test_a_position_out_of_bounds_is_named_with_its_dimension(position: int) -> None:
    mask = torch.arange(2) < torch.tensor([[2, 1], [0, 2]])[..., None]
    x = mg.masked(torch.randn(2, 2, 2), mask).to_sparse(layout=torch.jagged)
    with pytest.raises(IndexError, match=f"index {position} is out of bounds for dimension 2 with size 2"):
        x[:, :, position]
