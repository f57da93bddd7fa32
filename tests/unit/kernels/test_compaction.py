"""masked_select and masked_scatter: both bodies against indexing, bit for bit, and each as the other's derivative."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from maskgrad.kernels.compaction import cpu as loops
from tests.unit.kernels.bodies import cpu, reference

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
]  # fmt: skip
SIZES = [0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 129, 1000, 4099]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def numbers(dtype: torch.dtype, size: int) -> torch.Tensor:
    values = torch.randn(size) * 50
    if dtype.is_floating_point:
        values[::5], values[1::7] = torch.nan, -0.0
    return values.to(dtype)


def masks(size: int) -> list[torch.Tensor]:
    last = torch.zeros(size, dtype=torch.bool)
    last[-1:] = True
    return [*(torch.rand(size) < density for density in (0.0, 0.02, 0.5, 0.98, 1.0)), last, last.flip(0)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_dtype_length_and_density(dtype: torch.dtype) -> None:
    for size in SIZES:
        values = numbers(dtype, size)
        for mask in masks(size):
            expected = values[mask]
            back = torch.zeros(size, dtype=dtype)
            bits(back)[mask] = bits(expected)
            for body in (reference, cpu):
                found = body.masked_select(values, mask)
                assert found.dtype == dtype
                assert torch.equal(bits(found), bits(expected))
                found = body.masked_scatter(expected, mask)  # PyTorch's has NaNs of its own for bfloat16
                torch.testing.assert_close(found, back, rtol=0, atol=0, equal_nan=True)
            assert torch.equal(bits(found), bits(back))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_nothing_is_written_behind_the_last_entry(dtype: torch.dtype) -> None:
    for size in SIZES:
        for mask in masks(size):
            number = int(mask.sum())
            values, out = torch.full((size,), 3, dtype=dtype), torch.full((size + 200,), 7, dtype=dtype)
            unit = loops.UNITS[values.element_size()]
            loops._select(out[100:].data_ptr(), values.data_ptr(), mask.data_ptr(), size, number, unit)
            assert out[100 : 100 + number].eq(3).all()
            assert out[:100].eq(7).all()
            assert out[100 + number :].eq(7).all()
            out.fill_(7)
            loops._scatter(out[100:].data_ptr(), values.data_ptr(), mask.data_ptr(), size, number, unit)
            assert torch.equal(out[100 : 100 + size].eq(3), mask)
            assert out[:100].eq(7).all()
            assert out[100 + size :].eq(7).all()


@given(st.data())
def test_any_shape_order_and_expansion(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), max_size=4))

    def view(made: Any) -> torch.Tensor:
        order = data.draw(st.permutations(range(len(shape))))
        sizes = [1 if data.draw(st.booleans()) else shape[d] for d in order]
        return made(sizes).permute(sorted(range(len(shape)), key=order.__getitem__)).expand(shape)

    values, mask = view(torch.randn), view(lambda sizes: torch.rand(sizes) < 0.5)
    expected = values[mask].reshape(-1)
    assert torch.equal(cpu.masked_select(values, mask), expected)
    assert torch.equal(cpu.masked_scatter(expected, mask), torch.where(mask, values, 0))


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_each_is_the_derivative_of_the_other(body: str) -> None:
    mask = torch.rand(9, 11) < 0.5
    values = torch.randn(9, 11, dtype=torch.float64, requires_grad=True)
    with use_kernels(body):
        for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
            check(lambda x: kernels.masked_select(x, mask).sin(), (values,))
            check(lambda x: kernels.masked_scatter(x, mask).sin(), (values.detach()[mask].requires_grad_(),))
        (kernels.masked_select(values, mask) * 3).sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, mask * 3.0)


def test_garbage_in_gradients_is_not_spread() -> None:
    values = torch.full((9000,), torch.nan, requires_grad=True)
    mask = torch.rand(9000) < 0.5
    assert kernels.masked_select.is_compiled_for(values, mask)
    kernels.masked_select(values, mask).sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, mask.float())


def test_results_own_no_more_memory_than_they_show() -> None:
    mask = torch.rand(5000) < 0.5
    found = cpu.masked_select(torch.randn(5000), mask)
    assert found._base is None
    assert found.untyped_storage().nbytes() == 4 * int(mask.sum())


def test_what_does_not_fit_is_refused() -> None:
    mask = torch.tensor([True, False])
    with pytest.raises(ValueError, match=r"mask must have the shape of values, \(3,\); got \(2,\)"):
        kernels.masked_select(torch.ones(3), mask)
    with pytest.raises(TypeError, match="must be a Boolean tensor"):
        kernels.masked_select(torch.ones(2), mask.long())
    with pytest.raises(ValueError, match="must have one entry for each of 1 positions, got 2"):
        cpu.masked_scatter(torch.ones(2), mask)
