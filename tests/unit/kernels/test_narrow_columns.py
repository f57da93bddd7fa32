"""Narrow columns: rows that follow each other in memory are reduced as a wide one, and merged in the end."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.kernels.cpu.partition import partition

GARBAGE = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e38])

#: Rows that can be joined, that cannot (a prime number of them), that are just many enough, and wide ones.
SHAPES = [
    (9_984, 3),
    (100_000, 4),
    (9_973, 4),
    (64, 200, 8),
    (2, 8_192, 5),
    (8_192, 1),
    (8_192, 200),
    (3, 4_096, 130),
]


def _entries(shape: tuple[int, ...], dtype: torch.dtype, share: float) -> tuple[Tensor, Tensor]:
    """Values with many ties, garbage under the mask, and a column without an entry."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(-40, 40, shape, generator=generator).to(dtype) / 8
    mask = torch.rand(shape, generator=generator) < share
    mask[..., -1] &= shape[-1] == 1
    where = torch.arange(values.numel()).remainder(4).view(shape)
    return torch.where(mask, values, GARBAGE.to(dtype)[where]), mask


def _same(found: mg.MaskedTensor, mask: Tensor, expected: Tensor, **tolerance: float) -> None:
    assert torch.equal(found.mask, mask)
    shown = torch.where(mask, expected, 0).to(found.dtype)
    torch.testing.assert_close(found.filled(0), shown, **tolerance)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [0.001, 0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_reductions_of_narrow_columns(shape: tuple[int, ...], share: float, dtype: torch.dtype) -> None:
    values, mask = _entries(shape, dtype, share)
    x, wide, dim = mg.masked(values, mask), values.double(), len(shape) - 2
    known = torch.where(mask, wide, 0)
    count = mask.sum(dim)
    rough = {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else {"rtol": 1e-5, "atol": 1e-5}
    if dtype != torch.float16:  # which sums would leave
        _same(x.sum(dim), count > 0, known.sum(dim), **rough)
    _same(x.mean(dim), count > 0, known.sum(dim) / count, **rough)
    apart = torch.where(mask, wide - (known.sum(dim) / count).unsqueeze(dim), 0)
    _same(x.var(dim), count > 1, apart.square().sum(dim) / (count - 1), **rough)
    _same(x.logsumexp(dim), count > 0, torch.where(mask, wide, -torch.inf).logsumexp(dim), **rough)
    ranked = torch.where(mask, wide, -1e300)
    _same(x.amax(dim), count > 0, ranked.amax(dim), rtol=0, atol=0)
    _same(x.argmax(dim), count > 0, ranked.argmax(dim), rtol=0, atol=0)
    ranked = torch.where(mask, wide, 1e300)
    _same(x.amin(dim), count > 0, ranked.amin(dim), rtol=0, atol=0)
    _same(x.argmin(dim), count > 0, ranked.argmin(dim), rtol=0, atol=0)
    soft = torch.where(mask, torch.where(mask, wide, -1e300).softmax(dim), 0)
    _same(x.softmax(dim), mask, soft, **rough)


@pytest.mark.parametrize("shape", [(9_984, 3), (64, 200, 8)], ids=str)
def test_a_gradient_is_shared_by_those_that_attain_the_extremum(shape: tuple[int, ...]) -> None:
    values, mask = _entries(shape, torch.float64, 0.7)
    dim = len(shape) - 2
    leaf = values.clone().requires_grad_()
    mg.masked(leaf, mask).amax(dim).filled(0.0).sum().backward()
    ranked = torch.where(mask, values, -1e300)
    attained = (ranked == ranked.amax(dim, keepdim=True)) & mask
    assert leaf.grad is not None
    torch.testing.assert_close(
        leaf.grad, torch.where(attained, 1 / attained.sum(dim, keepdim=True).double(), 0), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("position", [0, 77, 9_983])
def test_nan_is_the_extremum_wherever_it_stands(position: int) -> None:
    values, mask = torch.randn(9_984, 3), torch.ones(9_984, 3, dtype=torch.bool)
    values[position, 1] = float("nan")
    values[-1, 0] = float("inf")
    x = mg.masked(values, mask)
    assert x.amax(0).isnan().filled(False).tolist() == [False, True, False]
    assert x.argmax(0).filled(-1).tolist() == values.argmax(0).tolist()


def test_which_rows_are_joined() -> None:
    def joined(*shape: int, mask: Tensor | None = None) -> int:
        values = torch.zeros(shape)
        mask = torch.zeros(shape, dtype=torch.bool) if mask is None else mask.expand(shape)
        return partition((values, mask), (len(shape) - 2,), 1024)[1].joined

    assert joined(100_000, 4) == 50
    assert joined(64, 200, 8) == 5
    assert joined(9_973, 4) == 1  # a prime number
    assert joined(100_000, 300) == 1  # wide
    assert joined(100, 4) == 1  # few
    assert joined(100_000, 4, mask=torch.zeros(100_000, 1, dtype=torch.bool)) == 1  # its rows do not follow
    assert joined(100_000, 4, mask=torch.zeros((), dtype=torch.bool)) == 50
