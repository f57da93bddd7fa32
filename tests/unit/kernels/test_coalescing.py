"""merge_rows: the reference against loops, the compiled body against the reference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cpu, reference

REDUCTIONS = ["sum", "mean", "amax", "amin"]
BODIES = [reference, cpu]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_against_loops(body, reduce, dtype):
    for n, num_rows, row in [
        (1, 1, ()),
        (50, 7, (3,)),
        (400, 90, ()),
        (60, 10**12, (2, 5)),
        (33, 5, (1,)),
        (0, 4, (3,)),
    ]:
        indices, values = torch.randint(0, num_rows, (n,)), torch.randn(n, *row).to(dtype)
        rows, merged = body.merge_rows(indices, values, num_rows, reduce)
        expected_rows, expected = oracles.merged(indices, values, reduce)
        assert rows.tolist() == expected_rows
        assert rows.dtype == torch.int64
        assert merged.dtype == dtype
        assert merged.shape == (len(expected_rows), *row)
        torch.testing.assert_close(merged.double(), expected, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers(body, dtype):
    indices, values = torch.randint(0, 9, (100,)), torch.randint(-99, 99, (100, 3)).to(dtype)
    for reduce in ("sum", "amax", "amin"):
        _, merged = body.merge_rows(indices, values, 9, reduce)
        assert merged.dtype == dtype
        assert torch.equal(merged.double(), oracles.merged(indices, values, reduce)[1])


def test_small_integers_and_booleans_run_the_reference():
    indices = torch.tensor([1, 0, 1])
    for dtype in (torch.int8, torch.int16, torch.uint8):
        assert kernels.merge_rows(indices, torch.tensor([1, 2, 3], dtype=dtype), 2)[1].tolist() == [2, 4]
        assert torch.ops.maskgrad.merge_rows(indices, torch.tensor([1, 2, 3], dtype=dtype), 2, "sum")[
            1
        ].tolist() == [2, 4]
    flags = torch.tensor([True, False, True])
    assert kernels.merge_rows(indices, flags, 2)[1].tolist() == [False, True]


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
def test_4096_half_ones_merge_to_4096(body):
    for dtype in (torch.float16, torch.bfloat16):
        rows, merged = body.merge_rows(torch.full((4096,), 3), torch.ones(4096, 2, dtype=dtype), 10)
        assert rows.tolist() == [3]
        assert merged.tolist() == [[4096.0, 4096.0]]


@pytest.mark.large(per="elsewhere")
@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
def test_33_million_ones_merge_exactly(body):
    ones = torch.ones(1).expand(2**25) if body is reference else torch.ones(2**25)
    _, merged = body.merge_rows(torch.zeros(2**25, dtype=torch.int64), ones, 10**6)
    assert merged.tolist() == [33554432.0]


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
def test_large_and_small_duplicates_are_rounded_once(body):
    values = torch.tensor([1e8, 1.0, -1e8, 1.0])
    assert body.merge_rows(torch.zeros(4, dtype=torch.int64), values, 1)[1].tolist() == [2.0]


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_nan_is_the_extremum(reduce):
    indices, values = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([1.0, math.nan, 2.0, -math.inf, math.inf])
    for body in BODIES:
        merged = body.merge_rows(indices, values, 2, reduce)[1]
        assert merged[0].isnan()
        assert merged[1].item() == (math.inf if reduce == "amax" else -math.inf)


@st.composite
def problems(draw):
    n, width = draw(st.integers(0, 200)), draw(st.sampled_from([0, 1, 2, 5, 16, 33]))
    num_rows = draw(st.sampled_from([1, 2, 7, 100, 2048, 2049, 10**6, 2**33, 2**54]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    used = torch.randint(0, num_rows, (draw(st.sampled_from([1, 3, 50])),), generator=generator)
    indices = used[torch.randint(0, len(used), (n,), generator=generator)] if draw(st.booleans()) else None
    if indices is None:
        indices = torch.randint(0, num_rows, (n,), generator=generator)
    values = torch.randn(n, width, generator=generator, dtype=torch.float64)
    return (
        indices,
        values.round(decimals=draw(st.sampled_from([0, 9]))),
        num_rows,
        draw(st.sampled_from(REDUCTIONS)),
    )


@given(problems())
def test_forward_and_backward_agree_with_the_reference(problem):
    indices, values, num_rows, reduce = problem
    results = []
    for body in ("reference", "cpu"):
        leaf = values.clone().requires_grad_()
        with use_kernels(body):
            rows, merged = kernels.merge_rows(indices, leaf, num_rows, reduce)
            (grad,) = torch.autograd.grad(
                merged, leaf, torch.arange(merged.numel()).double().cos().view_as(merged)
            )
        results.append((rows, merged.detach(), grad))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_first_and_second_derivatives(body, reduce):
    indices = torch.tensor([3, 0, 3, 7, 3, 0])
    values = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)

    def squares(x):
        return kernels.merge_rows(indices, x * x, 8, reduce)[1] ** 2

    with use_kernels(body):
        assert torch.autograd.gradcheck(squares, values)
        assert torch.autograd.gradgradcheck(squares, values)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_ties_share_the_gradient(body):
    values = torch.tensor([2.0, 2.0, 1.0, 0.0, -1.0, torch.inf, torch.inf], requires_grad=True)
    with use_kernels(body):
        _, merged = kernels.merge_rows(torch.tensor([0, 0, 0, 1, 1, 2, 2]), values, 3, "amax")
    merged.sum().backward()
    assert values.grad.tolist() == [0.5, 0.5, 0.0, 1.0, 0.0, 0.5, 0.5]


def test_any_strides():
    indices = torch.randint(0, 50, (300,)).repeat_interleave(2)[::2]
    wide = torch.randn(300, 8, 3)
    for values in (
        wide[:, ::2],
        wide.transpose(1, 2),
        wide[:, :1].expand(300, 8, 3),
        wide[0].expand(300, 8, 3),
    ):
        for mine, theirs in zip(
            cpu.merge_rows(indices, values, 50), reference.merge_rows(indices, values, 50), strict=True
        ):
            torch.testing.assert_close(mine, theirs)


def test_results_do_not_depend_on_the_number_of_threads():
    indices, values = torch.randint(0, 5000, (20_000,)), torch.randn(20_000, 64)
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append(kernels.merge_rows(indices, values, 5000)[1])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("index", [-1, 10, 2**40])
def test_an_index_outside_the_table_is_named(index):
    indices, values = torch.tensor([1, index, 2]), torch.ones(3, 2)
    with (
        use_kernels("cpu"),
        pytest.raises(IndexError, match=rf"must lie in \[0, 10\).*indices\[1\] is {index}"),
    ):
        kernels.merge_rows(indices, values, 10)


def test_mistakes_are_named():
    indices, values = torch.tensor([0, 1]), torch.ones(2)
    with pytest.raises(ValueError, match=r"reduce must be one of sum, mean, amax, amin; got 'prod'"):
        kernels.merge_rows(indices, values, 2, "prod")
    with pytest.raises(TypeError, match=r"is not defined for torch.int64"):
        kernels.merge_rows(indices, values.long(), 2, "mean")
    with pytest.raises(TypeError, match=r"indices must be a 1-D int64 tensor; got 1-D torch.int32"):
        kernels.merge_rows(indices.int(), values, 2)
    with pytest.raises(ValueError, match=r"values must have one row for each of 2 indices; got \(3,\)"):
        kernels.merge_rows(indices, torch.ones(3), 2)
