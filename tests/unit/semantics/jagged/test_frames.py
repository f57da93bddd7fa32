"""Ragged batches that are padded to different sizes: the padded size is no part of their meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg

LENGTHS = (3, 0, 2)


def batch(sequences: list[Tensor], size: int) -> mg.MaskedTensor:
    """Jagged, padded to ``size``."""
    padded = torch.stack([F.pad(part, (0, 0, 0, size - len(part)), value=torch.nan) for part in sequences])
    return mg.from_lengths(padded, torch.tensor([len(part) for part in sequences]), layout=torch.jagged)


def sequences(lengths: tuple[int, ...] = LENGTHS) -> list[Tensor]:
    return [torch.randn(length, 4, dtype=torch.float64) for length in lengths]


def parts_of(x: mg.MaskedTensor) -> list[Tensor]:
    """The sequences of a batch, read from the padded form."""
    dense = x.to_dense()
    return [row[:n] for row, n in zip(dense.filled(0.0), dense.mask[..., 0].sum(-1).tolist(), strict=True)]


ONE_BY_ONE: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "max": torch.max,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 0.0),
    "in place": lambda x, y: x.clone().add_(y),
    "cat": lambda x, y: torch.cat([x, y], -1),
    "stack": lambda x, y: torch.stack([x, y], -1).flatten(-2),
    "gather": lambda x, y: x.gather(-1, (y > 0).long()),
    "mse": lambda x, y: F.mse_loss(x, y, reduction="none"),
}


@pytest.mark.every
@pytest.mark.parametrize("sizes", [(3, 7), (7, 3)])
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_sequences_of_the_same_lengths_meet_whatever_the_padding(name: str, sizes: tuple[int, int]) -> None:
    function, one, other = ONE_BY_ONE[name], sequences(), sequences()
    found = function(batch(one, sizes[0]), batch(other, sizes[1]))
    assert found.layout is torch.jagged
    assert found.shape[1] == (max(sizes) if name in ("where", "cat", "stack") else sizes[0])
    assert tuple(found.lengths().tolist()) == LENGTHS
    for part, a, b in zip(parts_of(found), one, other, strict=True):
        torch.testing.assert_close(part, function(a, b))


def test_losses_of_sequences_in_other_frames_meet_position_by_position() -> None:
    one, other = sequences(), sequences()
    x, y = batch(one, 3), batch(other, 6)
    a, b = torch.cat(one), torch.cat(other)
    torch.testing.assert_close(F.mse_loss(x, y), F.mse_loss(a, b))
    labels, expected = y.argmax(-1), F.cross_entropy(a, b.argmax(-1))
    torch.testing.assert_close(F.cross_entropy(x.transpose(1, 2), labels), expected)
    torch.testing.assert_close(F.cross_entropy(x.flatten(0, 1), labels.flatten()), expected)
    torch.testing.assert_close(F.cosine_similarity(x, y, -1).mean(), F.cosine_similarity(a, b, -1).mean())
    torch.testing.assert_close(mg.align(x, y), (a.flatten(), b.flatten()))
    torch.testing.assert_close(mg.align(x, labels), (a, b.argmax(-1)))


def test_joins_take_the_longest() -> None:
    one, other = sequences((5, 2)), sequences((1, 0, 3))
    x, y = batch(one, 5), batch(other, 3)
    for found, parts in ((torch.cat([x, y]), one + other), (torch.cat([y, x]), other + one)):
        assert found.layout is torch.jagged
        assert found.shape == (5, 5, 4)
        for part, expected in zip(parts_of(found), parts, strict=True):
            assert torch.equal(part, expected)
    y = batch(other[::2], 3)
    joined = torch.stack([x, y])
    assert joined.shape == (2, 2, 5, 4)
    assert joined.mask[..., 0].sum(-1).tolist() == [[5, 2], [1, 3]]
    assert torch.cat([x, y], 1).shape == (2, 8, 4)  # one behind the other
    chosen = torch.where(torch.tensor([True, False])[:, None, None], x, y)
    assert chosen.mask[..., 0].sum(-1).tolist() == [5, 3]


@pytest.mark.parametrize(
    "function", [torch.add, torch.max, F.mse_loss, mg.align, lambda x, y: x.masked_fill(y > 0, 0.0)]
)
def test_lengths_that_differ_are_told_in_sequences(function: Callable[..., Any]) -> None:
    x, y = batch(sequences((5, 2)), 5), batch(sequences((1, 3)), 3)
    with pytest.raises(ValueError, match=r"sequence 0 has 5 positions in one operand and 1 in the other"):
        function(x, y)
    function(x[:, :3], y[:, :3])  # the advice
    assert (x[:, :3] + y[:, :3]).lengths().tolist() == [1, 2]


def test_a_size_of_one_is_repeated_as_ever() -> None:
    x = batch(sequences((5, 2)), 5)
    first = batch([part[:1] for part in parts_of(x)], 1)
    assert (x - first).to_dense().mask.equal(x.to_dense().mask)
