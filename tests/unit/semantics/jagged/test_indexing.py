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


@pytest.mark.parametrize("features", [(), (2,), (2, 3), (0,)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_sequence_is_what_it_is_on_a_mask(features: tuple[int, ...], turned: bool) -> None:
    rows, masked, data = batch(*features)
    for number in (0, 1, -1):
        found, expected = ((x.transpose(0, -1)[..., number] if turned else x[number]) for x in (rows, masked))
        assert found.shape == expected.shape
        assert torch.equal(found.mask, expected.mask)
        torch.testing.assert_close(found.filled(0.0), expected.filled(0.0))
        gradients = [
            torch.autograd.grad((x * x).sum(), data, retain_graph=True)[0] for x in (found, expected)
        ]
        assert not gradients[0].isnan().any()
        torch.testing.assert_close(*gradients)
    with pytest.raises(IndexError, match="index 3 is out of bounds for dimension 0 with size 3"):
        rows[3]


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
