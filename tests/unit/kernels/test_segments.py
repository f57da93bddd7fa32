"""Segments: the reference against loops, the compiled bodies against both, derivatives of two orders."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.effort import examples
from tests.unit.kernels.bodies import cpu, reference

BODIES = [reference, cpu]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LENGTHS = [[3], [1, 1, 1], [5, 1, 31, 32, 33, 2], [200, 3, 64], []]


@pytest.fixture(autouse=True)
def _compiled_bodies_for_small_tensors_too():
    with use_kernels("cpu"):
        yield


def pointers_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def parts(values, pointers, order):
    """The entries of each segment, one tensor for each."""
    at = range(len(values)) if order is None else order.tolist()
    ends = pointers.tolist()
    return [values[[at[i] for i in range(a, b)]] for a, b in itertools.pairwise(ends)]


def joined(pieces, order, like):
    """The opposite: one tensor of what each entry has."""
    whole = torch.cat(pieces) if pieces else like.new_zeros(like.shape, dtype=torch.float64)
    return whole if order is None else torch.empty_like(whole).index_copy(0, order, whole)


def orders(number):
    return [None, torch.randperm(number)]


def close(found, expected, dtype):
    tolerance = ROUNDING.get(dtype, 0)
    torch.testing.assert_close(
        found.to(expected.dtype), expected, rtol=tolerance, atol=tolerance * 10, equal_nan=True
    )


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.int64])
@pytest.mark.parametrize("dense", [(), (1,), (3,), (2, 2)])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_sum_spread_and_extremum_of_each_segment(body, dtype, dense, lengths):
    pointers = pointers_of(lengths)
    values = (torch.randn(sum(lengths), *dense) * 9).to(dtype)
    for order in orders(sum(lengths)):
        pieces = parts(values.double(), pointers, order)
        empty = values.new_zeros((0, *dense), dtype=torch.float64)
        total = body.segment_sum(values, pointers, order)
        assert total.dtype == (torch.float32 if dtype in FLOATS[:2] else dtype)
        close(total, torch.stack([p.sum(0) for p in pieces]) if pieces else empty, total.dtype)
        for largest in (True, False):
            best = body.segment_extremum(values, pointers, order, largest)
            expected = [p.amax(0) if largest else p.amin(0) for p in pieces]
            assert best.dtype == dtype
            assert torch.equal(best.double(), torch.stack(expected) if pieces else empty)
        spread = body.segment_expand(best, pointers, order, len(values))
        assert spread.dtype == dtype
        wide = [e.expand(len(p), *dense) for e, p in zip(expected, pieces, strict=True)]
        assert torch.equal(spread.double(), joined(wide, order, values))


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
@pytest.mark.parametrize("logarithm", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dense", [(), (3,)])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_softmax_within_each_segment(body, logarithm, dtype, dense, lengths):
    pointers, function = pointers_of(lengths), torch.log_softmax if logarithm else torch.softmax
    values = (torch.randn(sum(lengths), *dense) * 9).to(dtype)
    for order in orders(sum(lengths)):
        found = body.segment_softmax(values, pointers, order, logarithm)
        assert found.dtype == dtype
        expected = joined([function(p, 0) for p in parts(values.double(), pointers, order)], order, values)
        close(found, expected, dtype)
        grad = torch.randn_like(values)
        back = body.segment_softmax_backward(grad, found, pointers, order, logarithm)
        leaf = values.double().requires_grad_()
        pieces = [function(p, 0) for p in parts(leaf, pointers, order)]
        if pieces:
            (slope,) = torch.autograd.grad(joined(pieces, order, leaf), leaf, grad.double())
            torch.testing.assert_close(back.double(), slope, rtol=0.05, atol=50 * ROUNDING[dtype])
        assert back.dtype == dtype


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
@pytest.mark.parametrize("length", [4, 80])
def test_what_is_not_finite_stays_in_its_segment(body, length):
    lengths = [length] * 6
    values = torch.randn(sum(lengths))
    for segment, strange in enumerate([math.nan, math.inf, -math.inf, 1e38]):
        values[segment * length + 2] = strange
    values[4 * length : 5 * length] = -math.inf
    pointers = pointers_of(lengths)
    for order in (None, torch.cat([torch.randperm(length) + k * length for k in range(6)])):
        pieces = parts(values, pointers, order)
        close(
            body.segment_sum(values, pointers, order), torch.stack([p.sum() for p in pieces]), torch.float32
        )
        for largest in (True, False):
            expected = torch.stack([p.amax() if largest else p.amin() for p in pieces])
            close(body.segment_extremum(values, pointers, order, largest), expected, torch.float64)
        for logarithm, function in ((False, torch.softmax), (True, torch.log_softmax)):
            expected = joined([function(p, 0) for p in pieces], order, values)
            close(body.segment_softmax(values, pointers, order, logarithm), expected, torch.float32)


def test_the_dtype_of_a_sum_may_be_asked_for():
    pointers, values = torch.tensor([0, 3]), torch.tensor([1e8, 1.0, -1e8])
    for body in BODIES:
        found = body.segment_sum(values, pointers, None, torch.float64)
        assert (found.dtype, found.item()) == (torch.float64, 1.0)
        assert (
            body.segment_sum(values.half().clamp(max=100), pointers, None, torch.float64).dtype
            == torch.float64
        )
        assert body.segment_sum(values.long(), pointers, None, torch.float64).item() == 1.0


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(0, 50), max_size=60), st.sampled_from([torch.int32, torch.int64]))
def test_rows_are_sorted_stably(indices, dtype):
    indices = torch.tensor(indices, dtype=dtype)
    for body in BODIES:
        pointers, order, rows = body.sort_rows(indices, 51)
        expected = sorted(range(len(indices)), key=lambda i: int(indices[i]))
        assert order.tolist() == expected
        assert rows.tolist() == sorted(set(indices.tolist()))
        counts = [int((indices == row).sum()) for row in rows]
        assert pointers.diff().tolist() == counts
        assert pointers.dtype == order.dtype == torch.int64


def test_rows_of_an_enormous_table_are_sorted_too():
    indices = torch.tensor([2**62, 3, 2**62, 0])
    for body in BODIES:
        pointers, order, rows = body.sort_rows(indices, 2**63 - 1)
        assert (pointers.tolist(), order.tolist()) == ([0, 1, 2, 4], [3, 1, 0, 2])
        assert rows.tolist() == [0, 3, 2**62]


FUNCTIONS = {
    "sum": lambda v, p, o: kernels.segment_sum(v * v, p, o),
    "spread": lambda v, p, o: kernels.segment_expand(v[: len(p) - 1] ** 2, p, o, len(v)),
    "amax": lambda v, p, o: kernels.segment_extremum(v, p, o, True),
    "amin": lambda v, p, o: kernels.segment_extremum(v, p, o, False) ** 2,
    "softmax": kernels.segment_softmax,
    "log_softmax": lambda v, p, o: kernels.segment_softmax(v, p, o, True),
}


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("function", list(FUNCTIONS))
@pytest.mark.parametrize("dense", [(), (2,)])
def test_first_and_second_derivatives(body, function, dense):
    pointers = pointers_of([3, 1, 4])
    for order in orders(8):
        values = torch.randn(8, *dense, dtype=torch.float64, requires_grad=True)
        with use_kernels(body):

            def f(v, order=order):
                return FUNCTIONS[function](v, pointers, order)

            assert torch.autograd.gradcheck(f, values)
            assert torch.autograd.gradgradcheck(f, values)


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_ties_share_the_gradient(body):
    values = torch.tensor([2.0, 2.0, 1.0, 0.0, 0.0, 0.0], requires_grad=True)
    with use_kernels(body):
        kernels.segment_extremum(values, torch.tensor([0, 3, 6]), None, True).sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([0.5, 0.5, 0.0, 1 / 3, 1 / 3, 1 / 3]))


def test_batched_gradients_and_transforms_of_a_compiled_forward():
    pointers, order = pointers_of([3, 1, 4]), torch.randperm(8)
    x = torch.randn(8, requires_grad=True)
    for function in FUNCTIONS.values():
        y = function(x, pointers, order)
        seeds = torch.randn(3, *y.shape)
        (batched,) = torch.autograd.grad(y, x, seeds, is_grads_batched=True, retain_graph=True)
        single = [torch.autograd.grad(y, x, seed, retain_graph=True)[0] for seed in seeds]
        torch.testing.assert_close(batched, torch.stack(single))
        rows = torch.randn(2, 8)
        mapped = torch.vmap(lambda row, f=function: f(row, pointers, order))(rows)
        torch.testing.assert_close(mapped, torch.stack([function(row, pointers, order) for row in rows]))


def test_many_threads_add_up_what_one_adds():
    index, values = torch.randint(700, (500_003,)), torch.randn(500_003)
    pointers, order, rows = cpu.sort_rows(index, 700)
    expected = torch.zeros(700, dtype=torch.float64).index_add(0, index, values.double())
    assert torch.equal(rows, torch.arange(700))
    torch.testing.assert_close(cpu.segment_sum(values, pointers, order, torch.float64), expected)
    found = cpu.segment_softmax(values, pointers, order, False)
    torch.testing.assert_close(torch.zeros(700).index_add(0, index, found), torch.ones(700))
