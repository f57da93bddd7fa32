"""masked_filling: the compiled body against torch.where, entry for entry and bit for bit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskgrad as mg
from maskgrad import kernels
from maskgrad.kernels import use_kernels
from maskgrad.semantics.entries import LARGE, Entries, fill
from tests.effort import examples
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cpu, reference

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _compiled_bodies_for_small_tensors_too():
    with use_kernels("cpu"):
        yield


def same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert torch.equal(found.isnan(), expected.isnan())
    kept = ~expected.isnan()
    assert torch.equal(found[kept], expected[kept])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 2, 7, 31, 64, 101, 16_384, 16_385, 50_021])
def test_any_dtype_and_length(dtype, size):
    values = (torch.randn(size) * 50).to(dtype)
    for mask in (
        torch.rand(size) < 0.5,
        torch.ones(size, dtype=torch.bool),
        torch.zeros(size, dtype=torch.bool),
    ):
        for filler in (False, True) if dtype == torch.bool else (0, 1):
            same(cpu.masked_filling(values, mask, filler), torch.where(mask, values, filler))


@pytest.mark.parametrize("filler", [0.0, -0.0, 1, 0.5, math.inf, -math.inf, math.nan, 1e38, 2.0])
@pytest.mark.parametrize("dtype", DTYPES[:4])
def test_any_filler(dtype, filler):
    values, mask = torch.randn(300).to(dtype), torch.rand(300) < 0.5
    found, expected = cpu.masked_filling(values, mask, filler), torch.where(mask, values, filler)
    same(found, expected)
    assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize("garbage", oracles.GARBAGE)
def test_garbage_under_the_mask_disappears_and_above_it_stays(garbage):
    values, mask = torch.full((1000,), garbage), torch.rand(1000) < 0.5
    same(cpu.masked_filling(values, mask, 3.0), torch.where(mask, values, 3.0))
    leaf = values.clone().requires_grad_()
    with torch.autograd.set_detect_anomaly(True):
        kernels.masked_filling(leaf, mask, 3.0).sum().backward()
    assert torch.equal(leaf.grad, mask.float())


def layouts():
    values, mask = torch.randn(6, 70, 5), torch.rand(6, 70, 5) < 0.5
    return {
        "contiguous": (values, mask),
        "permuted together": (values.permute(2, 0, 1), mask.permute(2, 0, 1)),
        "values permuted": (torch.randn(5, 70, 6).permute(2, 1, 0), mask),
        "mask permuted": (values, (torch.rand(5, 70, 6) < 0.5).permute(2, 1, 0)),
        "sliced": (torch.randn(6, 70, 10)[:, :, ::2], mask),
        "mask sliced": (values, (torch.rand(6, 70, 10) < 0.5)[:, :, ::2]),
        "sliced rows": (torch.randn(6, 80, 5)[:, 3:73], (torch.rand(7, 70, 5) < 0.5)[1:]),
        "expanded values": (torch.randn(6, 70, 1).expand(6, 70, 5), mask),
        "expanded scalar": (torch.randn(()).expand(6, 70, 5), mask),
        "token mask": (values, (torch.rand(6, 70, 1) < 0.5).expand(6, 70, 5)),
        "feature mask": (values, (torch.rand(5) < 0.5).expand(6, 70, 5)),
        "both expanded": (torch.randn(6, 1, 1).expand(6, 70, 5), (torch.rand(6, 70, 1) < 0.5).expand(6, 70, 5)),
        "channels last": (
            torch.randn(2, 3, 20, 5).to(memory_format=torch.channels_last),
            torch.rand(2, 3, 20, 5) < 0.5,
        ),
        "offset": (torch.randn(2101)[1:].view(6, 70, 5), mask),
        "number": (torch.randn(()), torch.tensor(True)),
    }  # fmt: skip


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout):
    values, mask = layouts()[layout]
    found = cpu.masked_filling(values, mask, -7.0)
    assert torch.equal(found, torch.where(mask, values, -7.0))
    assert found.stride() == torch.empty_like(values).stride()
    assert found.data_ptr() != values.data_ptr()


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_any_shape_order_and_expansion(data):
    shape = data.draw(st.lists(st.integers(1, 6), max_size=4))

    def view(made):
        order = data.draw(st.permutations(range(len(shape))))
        sizes = [1 if data.draw(st.booleans()) and d % 2 else shape[d] for d in order]
        made = made(sizes).permute(sorted(range(len(shape)), key=order.__getitem__))
        return made.expand(shape)

    values, mask = view(torch.randn), view(lambda sizes: torch.rand(sizes) < 0.5)
    assert torch.equal(cpu.masked_filling(values, mask, 2.0), reference.masked_filling(values, mask, 2.0))


@pytest.mark.parametrize("strides", ["mask repeats", "values repeat", "both repeat"])
def test_rows_of_several_pieces(strides):
    values, mask = torch.randn(3, 40_000), torch.rand(3, 40_000) < 0.5
    if strides != "values repeat":
        mask = torch.tensor([[True], [False], [True]]).expand(3, 40_000)
    if strides != "mask repeats":
        values = torch.randn(3, 1).expand(3, 40_000)
    assert torch.equal(cpu.masked_filling(values, mask, -7.0), torch.where(mask, values, -7.0))


def test_more_axes_than_a_loop_walks():
    """Five axes that do not merge: gaps in what is written, in what is read and in the mask."""
    target = torch.randn(5, 6, 4, 6, 14)[:, ::3, ::2, 1::2, ::5]
    values = torch.randn(5, 3, 4, 6, 7)[:, :2, 1:3, ::2, ::3]
    mask = (torch.rand(target.shape) < 0.5).permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0)
    whole, expected = target._base.clone(), torch.where(mask, values, target)
    kernels.write_where_(target, values, mask)
    assert torch.equal(target, expected)
    untouched = torch.ones(whole.shape, dtype=torch.bool)
    untouched[:, ::3, ::2, 1::2, ::5] = False
    assert torch.equal(target._base[untouched], whole[untouched])
    assert torch.equal(cpu.masked_filling(values, mask, 2.0), torch.where(mask, values, 2.0))


def test_first_and_second_derivatives():
    mask = torch.rand(5, 7) < 0.5
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)

    def f(x):
        return kernels.masked_filling(x, mask, 0.3).sin()

    assert torch.autograd.gradcheck(f, x)
    assert torch.autograd.gradgradcheck(f, x)
    y = kernels.masked_filling(x, mask, 0.3)
    (batched,) = torch.autograd.grad(y, x, torch.ones(2, 5, 7, dtype=torch.float64), is_grads_batched=True)
    assert torch.equal(batched, mask.double().expand(2, 5, 7))


def test_transforms_run_the_reference():
    x, mask = torch.randn(3, 40), torch.rand(40) < 0.5
    found = torch.vmap(lambda row: kernels.masked_filling(row, mask, 1.0))(x)
    assert torch.equal(found, torch.where(mask, x, 1.0))


def test_many_threads_write_what_one_writes():
    values, mask = torch.randn(1031, 1033), torch.rand(1031, 1033) < 0.5
    assert torch.equal(cpu.masked_filling(values, mask, 0.5), torch.where(mask, values, 0.5))


@pytest.mark.parametrize(
    "shapes", [((LARGE // 8, 8),) * 2, ((8,), (LARGE // 8, 8)), ((LARGE // 8, 8), (LARGE // 8, 1))]
)
def test_large_operands_are_filled_as_small_ones_are(shapes):
    values, mask = torch.randn(shapes[0], requires_grad=True), torch.rand(shapes[1]) < 0.5
    found, expected = fill(values, mask, 1), torch.where(mask, values, 1.0)
    assert torch.equal(found, expected)
    (ours,), (theirs,) = (torch.autograd.grad(y.square().sum(), values) for y in (found, expected))
    torch.testing.assert_close(ours, theirs)
    whole = torch.ones(LARGE, dtype=torch.bool)
    assert fill(Entries(torch.zeros(LARGE, dtype=torch.int64), ~whole), ~whole, 1.0).eq(1).all()


def test_complex_numbers_run_the_reference():
    values, mask = torch.randn(50, dtype=torch.complex64), torch.rand(50) < 0.5
    assert torch.equal(kernels.masked_filling(values, mask, 1.0), torch.where(mask, values, 1.0))
    assert torch.equal(torch.ops.maskgrad.masked_filling(values, mask, 1.0), torch.where(mask, values, 1.0))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
@pytest.mark.parametrize("layout", list(layouts()))
def test_writing_where_a_mask_holds(layout, dtype):
    """In any target that PyTorch writes to, what lies under the mask and beside the target stays, bit for bit."""
    values, mask = layouts()[layout]
    values = (values * 50).to(dtype)
    memory = torch.empty(2 * values.numel() + 3, dtype=dtype).fill_(True if dtype == torch.bool else 7)
    shape = list(values.shape)
    targets = [memory[3 : 3 + values.numel()].view(shape), memory[:-3].view(*shape, 2)[..., 1]]
    if values.ndim > 1:
        targets.append(memory[: values.numel()].view(*shape[1:], shape[0]).movedim(-1, 0))
    for target in targets:
        for source in (values, target.flip(0).clone() if values.ndim else values):
            expected, version = memory.clone(), target._version
            place = expected.as_strided(target.shape, target.stride(), target.storage_offset())
            place.copy_(torch.where(mask, source, place))
            kernels.write_where_(target, source, mask)
            assert torch.equal(memory.view(torch.uint8), expected.view(torch.uint8))
            assert target._version > version


def test_writing_is_seen_by_autograd_and_refused_where_entries_share_memory():
    mask = torch.rand(300) < 0.5
    x = torch.randn(300, requires_grad=True)
    kept = x * 1
    y = kept.sin()
    with torch.no_grad():
        kernels.write_where_(kept, torch.zeros(300), mask)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    shared = torch.zeros(1).expand(300)
    with pytest.raises(RuntimeError, match="single memory location"):
        kernels.write_where_(shared, torch.zeros(300), mask)
    memory = torch.arange(301.0)
    with pytest.raises(RuntimeError, match="some elements of the input tensor"):
        kernels.write_where_(memory[1:], memory[:-1], mask)


@pytest.mark.parametrize("width", [2, 3, 768, 4_097, 16_383])
def test_a_row_that_repeats_through_a_long_run(width):
    """It is copied piece by piece, and a piece holds whole rows."""
    rows = 120_000 // width
    values, mask = torch.randn(2, 1, width).expand(2, rows, width), torch.ones(2, rows, 1, dtype=torch.bool)
    mask[1, rows // 2] = False
    same(
        cpu.masked_filling(values, mask.expand(2, rows, width), 0),
        torch.where(mask, values, 0),
    )
    leaf, weight = torch.randn(2, rows, width, requires_grad=True), torch.randn(2, width)
    mg.masked(leaf, mask).sum(1).backward(weight)
    assert torch.equal(leaf.grad, torch.where(mask, weight[:, None], 0).expand(2, rows, width))
