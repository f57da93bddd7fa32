"""masked_sum, masked_mean, masked_count: the reference against loops, the compiled body against the reference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.effort import examples
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cpu, reference
from tests.unit.kernels.layouts import SHAPES_AND_DIMS, layouts

NAMES = ["masked_sum", "masked_mean"]
BODIES = [reference, cpu]
ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(autouse=True)
def _compiled_bodies_for_small_tensors_too():
    with use_kernels("cpu"):
        yield


def check(name, body, values, mask, dim, keepdim):
    expected, count = oracles.reduction(name, values, mask, dim, keepdim)
    result, number = getattr(body, name)(values, mask, dim, keepdim)
    assert result.shape == number.shape == expected.shape
    assert number.dtype == torch.int64
    torch.testing.assert_close(number, count)
    assert result.dtype == (values.dtype if values.is_floating_point() else torch.int64)
    tolerance = ROUNDING.get(values.dtype, 0)
    torch.testing.assert_close(result.to(expected.dtype), expected, rtol=tolerance, atol=tolerance * 10)
    torch.testing.assert_close(body.masked_count(mask, dim, keepdim), count)


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
def test_any_dimensions(body, name, shape, dim):
    values, mask = torch.randn(shape), torch.rand(shape) < 0.6
    for keepdim in (False, True):
        check(name, body, values, mask, dim, keepdim)


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("garbage", oracles.GARBAGE)
def test_garbage_under_the_mask_is_never_read(body, dtype, garbage):
    mask = torch.rand(37, 53) < 0.5
    mask[3], mask[:, 5] = False, False
    values = oracles.soiled(torch.randn(37, 53).to(dtype), mask, garbage)
    for name in NAMES:
        for dim in ((0,), (1,), (0, 1)):
            check(name, body, values, mask, dim, False)


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]
)
def test_integers_add_up_to_int64(body, dtype):
    values = torch.randint(0, 100, (40, 9)).to(dtype)
    mask = torch.rand(40, 9) < 0.5
    for dim in ((0,), (1,), (0, 1)):
        check("masked_sum", body, oracles.soiled(values, mask, 0), mask, dim, False)


def test_large_integers_are_exact():
    values = torch.full((10_001,), 2**50 + 1)
    mask = torch.arange(10_001) % 2 == 0
    assert kernels.masked_sum(values, mask, (0,), False)[0].item() == 5001 * (2**50 + 1)


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
def test_the_mean_of_integers_needs_a_dtype(body):
    values, mask = torch.arange(6), torch.ones(6, dtype=torch.bool)
    with pytest.raises(RuntimeError, match=r"could not infer output dtype.*Got: torch.int64; pass dtype"):
        body.masked_mean(values, mask, (0,), False)
    with pytest.raises(RuntimeError, match=r"Optional dtype must be.*Got: torch.int32"):
        body.masked_mean(values, mask, (0,), False, torch.int32)
    assert body.masked_mean(values, mask, (0,), False, torch.float32)[0].item() == 2.5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "values_dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_dtype_casts_first(name, values_dtype, dtype):
    values, mask = (torch.randn(300, 7) * 9).to(values_dtype), torch.rand(300, 7) < 0.5
    expected = getattr(reference, name)(values.to(dtype), mask, (0,), False)[0]
    result = getattr(cpu, name)(values, mask, (0,), False, dtype)[0]
    assert result.dtype == dtype
    torch.testing.assert_close(result, expected, rtol=ROUNDING[dtype] * 2, atol=ROUNDING[dtype] * 20)


def test_complex_numbers_run_the_reference():
    values, mask = torch.randn(100, 100, dtype=torch.complex64), torch.rand(100, 100) < 0.5
    expected = torch.where(mask, values, 0).sum(1)
    torch.testing.assert_close(kernels.masked_sum(values, mask, (1,), False)[0], expected)
    torch.testing.assert_close(torch.ops.maskgrad.masked_sum(values, mask, [1], False)[0], expected)
    assert "no compiled kernel" in kernels.explain("masked_sum", values, mask)


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout):
    values, mask = layouts()[layout]
    values = values if layout == "expanded values" else values.masked_fill(~mask, math.nan)
    for dims in range(1, 2**values.ndim):
        dim = tuple(d for d in range(values.ndim) if dims >> d & 1)
        for name in NAMES:
            expected = getattr(reference, name)(values.double(), mask, dim, False)
            result = getattr(cpu, name)(values, mask, dim, False)
            torch.testing.assert_close(result[1], expected[1])
            torch.testing.assert_close(result[0].double(), expected[0], rtol=2e-6, atol=3e-5)
            assert result[0].is_contiguous()


@pytest.mark.parametrize(
    "shape", [(3, 40_000), (40_000, 3), (2, 20_000, 5), (1, 1_300_001), (5000, 300), (257, 2053), (23, 4200)]
)
def test_sums_cut_into_pieces_and_over_threads(shape):
    values, mask = torch.randn(shape), torch.rand(shape) < 0.5
    values = values.masked_fill(~mask, math.nan)
    for dim in [(d,) for d in range(len(shape))] + [tuple(range(len(shape)))]:
        for name in NAMES:
            expected = getattr(reference, name)(values.double(), mask, dim, False)
            result = getattr(cpu, name)(values, mask, dim, False)
            torch.testing.assert_close(result[1], expected[1])
            torch.testing.assert_close(result[0].double(), expected[0], rtol=1e-6, atol=1e-4)


def test_no_more_rounding_than_torch_sum():
    values = torch.rand(1 << 21) + 1000
    exact = math.fsum(values.tolist())
    mask = torch.ones_like(values, dtype=torch.bool)
    for shape, dim in [((-1,), (0,)), ((-1, 64), (0, 1)), ((2048, -1), (0,))]:
        ours = kernels.masked_sum(values.view(shape), mask.view(shape), dim, False)[0].double().sum().item()
        theirs = values.view(shape).sum(dim).double().sum().item()
        assert abs(ours - exact) <= abs(theirs - exact) + 1e-7 * exact


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
def test_the_mean_of_halves_outlives_their_sum(body):
    values = torch.full((70_000,), 1000.0, dtype=torch.float16, requires_grad=True)
    mask = torch.ones(70_000, dtype=torch.bool)
    with use_kernels(body.__name__):
        mean, count = kernels.masked_mean(values, mask, (0,), False)
    assert (mean.item(), count.item()) == (1000.0, 70_000)
    mean.backward(torch.tensor(1000.0, dtype=torch.float16))
    torch.testing.assert_close(values.grad.float(), torch.full((70_000,), 1000 / 70_000), rtol=1e-3, atol=0)


@st.composite
def problems(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)))
    dim = tuple(d for d in range(len(shape)) if draw(st.booleans()))
    expanded = tuple(1 if draw(st.booleans()) else n for n in shape)
    seed, density = draw(st.integers(0, 2**16)), draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    generator = torch.Generator().manual_seed(seed)
    order = draw(st.permutations(range(len(shape))))
    values = torch.randn([shape[i] for i in order], generator=generator, dtype=torch.float64)
    values = values.permute([order.index(i) for i in range(len(shape))])
    mask = (torch.rand(expanded, generator=generator) < density).expand(shape)
    return (
        values,
        mask,
        dim,
        draw(st.booleans()),
        draw(st.sampled_from(oracles.GARBAGE)),
        draw(st.sampled_from(NAMES)),
    )


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@settings(max_examples=examples(150))
@given(problems())
def test_forward_and_backward_agree_with_the_reference(problem):
    values, mask, dim, keepdim, garbage, name = problem
    results = []
    for body in ("reference", "cpu"):
        leaf = values.masked_fill(~mask, garbage).requires_grad_()
        with use_kernels(body), torch.autograd.set_detect_anomaly(True, check_nan=True):
            result, count = getattr(kernels, name)(leaf, mask, dim, keepdim)
            weight = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape).cos()
            weight = weight.masked_fill(count == 0, 0.5)
            (grad,) = torch.autograd.grad(result, leaf, weight, create_graph=True)
        assert not (grad != 0)[~mask].any()
        results.append((result.detach(), count, grad.detach()))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dim", [(0,), (1,), (0, 1), (0, 2), (1, 2), ()])
def test_first_and_second_derivatives(body, name, dim):
    mask = torch.rand(3, 4, 2) < 0.5
    mask[0], mask[:, 1], mask[:, :, 0] = False, False, mask[:, :, 1]
    values = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)

    def powers(x):
        return getattr(kernels, name)(x**3, mask, dim, False)[0] ** 2

    with use_kernels(body):
        assert torch.autograd.gradcheck(powers, values)
        assert torch.autograd.gradgradcheck(powers, values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_sum_in_a_wider_dtype_sends_back_a_gradient_in_the_narrow_one(dtype):
    mask = torch.rand(130, 120) < 0.5
    values = torch.randn(130, 120).to(dtype).requires_grad_()
    result, _ = kernels.masked_sum(values, mask, (1,), False, torch.float64)
    result.sum().backward()
    torch.testing.assert_close(values.grad, mask.to(dtype))


def test_a_nan_gradient_stays_where_it_is_specified():
    values, mask = torch.randn(200, 100, requires_grad=True), torch.rand(200, 100) < 0.5
    mask[7] = False
    result, _ = kernels.masked_mean(values, mask, (1,), False)
    result.backward(torch.full((200,), math.nan))
    assert torch.equal(values.grad.isnan(), mask)


def test_specified_nan_and_inf_surface():
    values, mask = torch.ones(100, 200), torch.ones(100, 200, dtype=torch.bool)
    values[3, 4], values[5, 6] = math.nan, math.inf
    total, _ = kernels.masked_sum(values, mask, (1,), False)
    assert total[3].isnan()
    assert total[5].isinf()
    assert torch.isfinite(total).sum() == 98


def test_results_do_not_depend_on_the_number_of_threads():
    values, mask = torch.randn(1000, 1000), torch.rand(1000, 1000) < 0.5
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append([kernels.masked_sum(values, mask, d, False)[0] for d in ((0,), (1,), (0, 1))])
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_inputs_are_left_alone():
    values, mask = torch.randn(200, 200), torch.rand(200, 200) < 0.5
    before, versions = (values.clone(), mask.clone()), (values._version, mask._version)
    kernels.masked_mean(values, mask, (1,), False)
    assert torch.equal(values, before[0])
    assert torch.equal(mask, before[1])
    assert (values._version, mask._version) == versions


def test_mistakes_in_the_mask_are_named():
    with pytest.raises(
        TypeError, match=r"mask must be a Boolean tensor \(True = specified\); got torch.float32"
    ):
        kernels.masked_sum(torch.ones(3), torch.ones(3), (0,), False)
    with pytest.raises(
        ValueError, match=r"mask must have the shape of values, \(3, 2\); got \(2,\); expand it"
    ):
        kernels.masked_mean(torch.ones(3, 2), torch.ones(2, dtype=torch.bool), (0,), False)


def test_a_complex_sum_of_real_values() -> None:
    values, mask = torch.randn(50, 40), torch.rand(50, 40) < 0.5
    for name in ("masked_sum", "masked_mean"):
        wanted, _ = getattr(reference, name)(values, mask, (1,), False, torch.complex64)
        found, _ = getattr(cpu, name)(values, mask, (1,), False, torch.complex64)
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dim", [(0,), (1,), (-1,), (0, 2), (0, 1, 2), (1, -1)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_a_mask_that_repeats_is_counted_in_its_smallest_shape(dim: tuple[int, ...], keepdim: bool) -> None:
    for few in (torch.tensor([[[True], [False], [True]]]), torch.tensor([[[True, False, False, True]]])):
        mask = few.expand(2, 3, 4)
        count = reference.masked_count(mask, dim, keepdim)
        torch.testing.assert_close(count, mask.contiguous().sum(dim, keepdim))
