"""Padded features: a mask that repeats along the features is walked in runs of positions, and never expanded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import maskgrad as mg

SHAPES = [
    (64, 200, 8),
    (5, 300, 7),
    (3, 2, 1100),
    (2, 900, 6, 3),
    (2, 40_000, 2),
    (1, 70_000, 9),
    (40, 3, 8),
    (3, 4, 1),
    (9, 5_000, 16),
]


def _padded(shape: tuple[int, ...], dtype: torch.dtype, holes: bool) -> tuple[Tensor, Tensor]:
    """Values with ties and garbage under the mask; sequences of no, one and all positions are among them."""
    batch, length = shape[:2]
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, length + 1, (batch,), generator=generator)
    lengths[: min(batch, 3)] = torch.tensor([0, length, 1])[:batch] if batch > 1 else length - 1
    mask = torch.arange(length) < lengths[:, None]
    if holes:
        mask &= torch.rand(batch, length, generator=generator) < 0.7
    mask = mask[(...,) + (None,) * (len(shape) - 2)].expand(shape)
    values = torch.randint(-50, 50, shape, generator=generator).to(dtype)
    if dtype.is_floating_point:
        values = values / 8
        garbage = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e38]).to(dtype)
    else:
        garbage = torch.tensor([torch.iinfo(dtype).max, torch.iinfo(dtype).min])
    where = torch.arange(values.numel()).remainder(len(garbage)).view(shape)
    return torch.where(mask, values, garbage[where]), mask


def _checked(found: mg.MaskedTensor, mask: Tensor, expected: Tensor, **tolerance: float) -> None:
    assert torch.equal(found.mask, mask)
    zero = torch.zeros((), dtype=expected.dtype)
    torch.testing.assert_close(
        torch.where(mask, found.to_tensor(0).to(expected.dtype), zero),
        torch.where(mask, expected, zero),
        **tolerance,
    )


def _dims(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    features = tuple(range(2, len(shape)))
    return [(1, *features), features, (1,), tuple(range(len(shape))), (0,)]


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_reductions_of_padded_features(shape: tuple[int, ...], dtype: torch.dtype, holes: bool) -> None:
    values, mask = _padded(shape, dtype, holes)
    x, wide = mg.masked(values, mask), values.double()
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    for dims in _dims(shape):
        kept, count = mask.any(dims) if dims else mask, mask.sum(dims)
        total = torch.where(mask, wide, 0).sum(dims)
        _checked(x.sum(dims), kept, total.to(x.sum(dims).dtype), **tolerance)
        if dtype.is_floating_point:
            _checked(x.mean(dims), kept, (total / count).to(dtype), **tolerance)
            center = torch.where(mask, wide, 0).sum(dims, keepdim=True) / mask.sum(dims, keepdim=True)
            apart = wide - center
            variance = torch.where(mask, apart**2, 0).sum(dims) / (count - 1)
            _checked(x.var(dims), count > 1, variance.to(dtype), **tolerance)
        for found, sign in ((x.amax(dims), 1), (x.amin(dims), -1)):
            lowest = torch.where(mask, sign * wide, -1e300).amax(dims)
            _checked(found, kept, (sign * lowest).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_first_position_of_an_extremum(shape: tuple[int, ...], holes: bool) -> None:
    values, mask = _padded(shape, torch.float32, holes)
    x = mg.masked(values, mask)
    ranked = torch.where(mask, values.double(), -1e300)
    _checked(x.argmax(), mask.any(), ranked.argmax(), rtol=0, atol=0)
    for dim in range(len(shape)):
        _checked(x.argmax(dim), mask.any(dim), ranked.argmax(dim), rtol=0, atol=0)


def test_an_extremum_behind_equal_and_infinite_entries_of_padding() -> None:
    shape = (4, 500, 8)
    mask = (torch.arange(500) < torch.tensor([300, 0, 500, 33])[:, None])[..., None].expand(shape)
    for value in (-float("inf"), float("nan"), 2.0):
        values = torch.where(mask, value, float("inf"))
        x = mg.masked(values, mask)
        assert x.argmax().item() == 0
        assert x.amax((1, 2)).mask.tolist() == [True, False, True, True]
        late = values.clone()
        late[2, 499, 7] = 3.0 if value == value else value
        found = mg.masked(late, mask).argmax()
        assert found.item() == (0 if value != value else ((2 * 500) + 499) * 8 + 7)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_entries_of_padded_features(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values, mask = _padded(shape, dtype, holes=True)
    safe = torch.where(mask, values, 0)
    leaf, plain = values.clone().requires_grad_(), safe.clone().requires_grad_()
    x = mg.masked(leaf, mask)
    target = torch.zeros(shape, dtype=dtype)
    functional = torch.nn.functional
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    _checked(functional.gelu(x), mask, functional.gelu(safe), **tolerance)
    _checked(x.tanh(), mask, safe.tanh(), **tolerance)
    _checked(functional.mse_loss(x, target, reduction="none"), mask, safe**2, **tolerance)
    loss = functional.mse_loss(x, target)
    by_hand = torch.where(mask, plain, 0).pow(2).sum(dtype=torch.float64) / mask.sum()
    torch.testing.assert_close(loss.detach().double(), by_hand.detach(), **tolerance)
    loss.backward()
    (expected,) = torch.autograd.grad(by_hand, plain)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, torch.where(mask, expected, 0), **tolerance)
