"""masked_extremum and masked_position: both bodies against torch on each group without its unspecified entries."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from maskgrad.kernels.extrema import lowest
from tests.effort import examples
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cpu, reference
from tests.unit.kernels.layouts import SHAPES_AND_DIMS, layouts
from tests.unit.kernels.problems import problems

BODIES = [reference, cpu]
IDS = ["reference", "cpu"]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
inf, nan = math.inf, math.nan


@pytest.fixture(autouse=True)
def _compiled_bodies_for_small_tensors_too():
    with use_kernels("cpu"):
        yield


def some(dtype, shape):
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape).to(dtype)


@pytest.mark.parametrize("body", BODIES, ids=IDS)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
def test_any_dimensions(body, largest, shape, dim):
    mask = torch.rand(shape) < 0.6
    values = oracles.soiled(torch.randn(shape).mul(2).round(), mask, inf if largest else -inf)
    if any(shape[d] == 0 for d in dim if shape):
        with pytest.raises(
            IndexError, match="non-zero size"
        ):  # in torch's words: not even a position is empty
            body.masked_extremum(values, mask, dim, False, largest)
        return
    for keepdim in (False, True):
        groups, expected_shape = oracles.specified(values, mask, dim, keepdim)
        best, ties = body.masked_extremum(values, mask, dim, keepdim, largest)
        assert best.shape == ties.shape == torch.Size(expected_shape)
        choose = max if largest else min
        expected = [choose(g) if g else (-inf if largest else inf) for g in groups]
        assert best.flatten().tolist() == expected
        number = [g.count(e) if g else 0 for g, e in zip(groups, expected, strict=True)]
        assert ties.flatten().tolist() == number


@pytest.mark.parametrize("body", BODIES, ids=IDS)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_any_dtype_and_what_never_wins(body, dtype, largest):
    values, mask = some(dtype, (40, 33)), torch.rand(40, 33) < 0.5
    mask[3], mask[:, 5] = False, False
    never = lowest(dtype, largest)
    values[7], mask[7] = never, torch.rand(33) < 0.2
    for dim in ((0,), (1,), (0, 1)):
        best, ties = body.masked_extremum(values, mask, dim, False, largest)
        assert best.dtype == dtype
        for i, (group, here) in enumerate(
            zip(values.unbind(1 - dim[0]), mask.unbind(1 - dim[0]), strict=True)
            if len(dim) == 1
            else [(values.flatten(), mask.flatten())]
        ):
            left = group[here]
            expected = (
                torch.tensor(never, dtype=dtype)
                if not left.numel()
                else left.max()
                if largest
                else left.min()
            )
            assert best.flatten()[i] == expected
            assert ties.flatten()[i] == (left == expected).sum()
            if len(dim) == 1:
                index, present = body.masked_position(values, mask, dim[0], False, largest)
                assert present[i] == bool(left.numel())
                first = ((group == expected) & here).to(torch.uint8).argmax()
                assert index[i] == (first if left.numel() else 0)


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout):
    values, mask = layouts()[layout]
    values = values if layout == "expanded values" else values.masked_fill(~mask, nan)
    for largest in (True, False):
        for dims in range(1, 2**values.ndim):
            dim = tuple(d for d in range(values.ndim) if dims >> d & 1)
            mine = cpu.masked_extremum(values, mask, dim, True, largest)
            theirs = reference.masked_extremum(values, mask, dim, True, largest)
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
            share = torch.randn(mine[0].shape)
            spread = cpu.masked_extremum_spread(share, values, mine[0], mask)
            assert torch.equal(spread, reference.masked_extremum_spread(share, values, mine[0], mask))
        for d in range(values.ndim):
            mine, theirs = (b.masked_position(values, mask, d, False, largest) for b in (cpu, reference))
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("shape", [(3, 40_001), (40_001, 3), (2, 20_001, 5), (1, 600_001), (700, 1301)])
def test_cut_into_pieces_and_over_threads(shape):
    values, mask = torch.randn(shape).mul(100).round(), torch.rand(shape) < 0.5
    values = values.masked_fill(~mask, nan)
    for largest in (True, False):
        for dim in [*((d,) for d in range(len(shape))), tuple(range(len(shape)))]:
            mine = cpu.masked_extremum(values, mask, dim, False, largest)
            theirs = reference.masked_extremum(values, mask, dim, False, largest)
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
        for d in range(len(shape)):
            mine, theirs = (b.masked_position(values, mask, d, False, largest) for b in (cpu, reference))
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@settings(max_examples=examples(100))
@given(problems(dtypes=FLOATS, special=(0.0, -0.0, nan, inf, -inf), min_dims=1), st.booleans())
def test_the_compiled_body_agrees_with_the_reference(problem, largest):
    values, mask, dim, keepdim, _ = problem
    try:
        theirs = reference.masked_extremum(values, mask, dim, keepdim, largest)
    except (RuntimeError, IndexError):  # of no entries, as in torch
        with pytest.raises((RuntimeError, IndexError)):
            cpu.masked_extremum(values, mask, dim, keepdim, largest)
        return
    mine = cpu.masked_extremum(values, mask, dim, keepdim, largest)
    torch.testing.assert_close(mine[0], theirs[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(mine[1], theirs[1])
    pair = [body.masked_position(values, mask, dim[0], keepdim, largest) for body in (cpu, reference)]
    assert all(torch.equal(a, b) for a, b in zip(*pair, strict=True))


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@settings(max_examples=examples(100))
@given(problems(dtypes=FLOATS, special=(0.0, inf, -inf), min_dims=1), st.booleans())
def test_gradients_agree_with_the_reference(problem, largest):
    values, mask, dim, keepdim, _ = problem
    if any(values.shape[d] == 0 for d in dim):
        return
    results = []
    for body in ("reference", "cpu"):
        leaf = values.clone().requires_grad_()
        with use_kernels(body), torch.autograd.set_detect_anomaly(True, check_nan=True):
            best, present = kernels.extremum(leaf, mask, dim, keepdim, largest)
            weight = torch.arange(best.numel()).reshape(best.shape).cos().to(values.dtype)
            (grad,) = torch.autograd.grad(best, leaf, weight)
        assert not (grad != 0)[~mask].any()
        results.append((best.detach(), present, grad))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2 if values.dtype in FLOATS[:2] else 1e-6, atol=0)


@pytest.mark.parametrize("body", IDS)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_first_and_second_derivatives(body, largest, dim):
    mask = torch.rand(3, 4, 2) < 0.6
    mask[0], mask[:, 1] = False, False
    values = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)

    def powers(x):
        best, present = kernels.extremum(x**3, mask, dim, False, largest)
        return torch.where(present, best, 0) ** 2

    with use_kernels(body):
        assert torch.autograd.gradcheck(powers, values)
        assert torch.autograd.gradgradcheck(powers, values)


@pytest.mark.parametrize("body", IDS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_equals_share_and_nan_takes_all(body, dtype):
    values = torch.tensor([[2.0, 2, 1, 2], [nan, 1, 2, 2], [-0.0, 0, -1, 5]], dtype=dtype, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0]]).bool()
    with use_kernels(body):
        best, _ = kernels.extremum(values, mask, (1,), False, True)
        best.sum().backward()
    expected = torch.tensor([[0.5, 0.5, 0, 0], [nan, nan, nan, 0], [0.5, 0.5, 0, 0]], dtype=dtype)
    torch.testing.assert_close(values.grad, expected, equal_nan=True)


def test_results_do_not_depend_on_the_number_of_threads():
    values, mask = torch.randn(1000, 1000).mul(50).round(), torch.rand(1000, 1000) < 0.5
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append([cpu.masked_extremum(values, mask, d, False, True) for d in ((0,), (1,), (0, 1))])
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        for mine, first in zip(result, results[0], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, first, strict=True))


def test_mistakes_are_named():
    with pytest.raises(TypeError, match=r"mask must be a Boolean tensor"):
        kernels.extremum(torch.ones(3), torch.ones(3), (0,), False, True)
    with pytest.raises(ValueError, match=r"mask must have the shape of values, \(3, 2\); got \(2,\)"):
        kernels.masked_position(torch.ones(3, 2), torch.ones(2, dtype=torch.bool), 0, False, True)
    values, mask = torch.ones(3, dtype=torch.complex64), torch.ones(3, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="extrema are not defined for complex"):
        kernels.extremum(values, mask, (0,), False, True)


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("garbage", oracles.GARBAGE)
def test_an_infinite_winner_shares_with_nobody_under_the_mask(body, largest, garbage):
    """Under the mask lies what never wins, which is the winner here; PyTorch's own derivative would count it."""
    worst = -inf if largest else inf
    mask = torch.tensor([[True, False, False], [True, True, False], [True, True, True], [False] * 3])
    rows = torch.tensor([[worst, 5, 5], [worst, worst, 5], [1.0, 2, 2], [0, 0, 0]])
    values = oracles.soiled(rows, mask, garbage)
    half = [0, 0.5, 0.5] if largest else [1, 0, 0]
    with use_kernels(body):
        for kept, expected in ((rows, [[1, 0, 0], [0.5, 0.5, 0], half, [0, 0, 0]]), (rows[2:3], [half])):
            x = (values if kept is rows else values[2:3]).clone().requires_grad_()
            m = mask if kept is rows else mask[2:3]
            best, present = kernels.extremum(x, m, (1,), False, largest)
            assert present.tolist() == m.any(1).tolist()
            (slope,) = torch.autograd.grad(best[present].sum(), x)
            assert slope.tolist() == expected
