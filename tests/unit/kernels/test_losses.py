"""Losses of two tensors: the reference against torch, the compiled body against the reference, both directions."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.effort import examples
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cpu, reference
from tests.unit.kernels.samples_losses import NUMBERS

BODIES = [reference, cpu]
ROUNDING = {torch.float64: 1e-14, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
TORCH = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": lambda x, t, **options: F.huber_loss(x, t, delta=0.7, **options),
    "smooth_l1": lambda x, t, **options: F.smooth_l1_loss(x, t, beta=0.5, **options),
    "logits": F.binary_cross_entropy_with_logits,
    "probabilities": F.binary_cross_entropy,
}


@pytest.fixture(autouse=True)
def _compiled_bodies_for_small_tensors_too():
    with use_kernels("cpu"):
        yield


def operands(name, shape, dtype=torch.float32, garbage=math.nan, density=0.5):
    """Input, target, and a mask under which both hold garbage."""
    probable = name == "probabilities"
    input = torch.rand(shape).clamp(0.01, 0.99) if probable else torch.randn(shape) * 2
    target = torch.rand(shape) if NUMBERS[name][0] != "distance" else torch.randn(shape)
    mask = torch.rand(shape) < density
    return *(oracles.soiled(x.to(dtype), mask, garbage) for x in (input, target)), mask


def alone(name, input, target, mask, grad=None):
    """What torch gives on the specified entries alone, in float64: losses, and gradients by both operands."""
    x, t = (values[mask].double().requires_grad_() for values in (input, target))
    loss = TORCH[name](x, t, reduction="none")
    given = torch.ones_like(loss) if grad is None else grad[mask].double()
    by = torch.autograd.grad(loss, (x, t), given) if loss.numel() else (x, t)
    results = []
    for part in (loss, *by):
        whole = torch.zeros(mask.shape, dtype=torch.float64)
        whole[mask] = part.detach()
        results.append(whole)
    return results


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
@pytest.mark.parametrize("garbage", oracles.GARBAGE)
@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("name", list(NUMBERS))
def test_losses_and_gradients_are_those_of_the_specified_entries(body, name, dtype, garbage):
    input, target, mask = operands(name, (37, 53), dtype, garbage)
    grad = oracles.soiled(torch.randn(37, 53).to(dtype), mask, garbage)
    loss, by_input, _ = alone(name, input, target, mask, grad)
    close = {"rtol": ROUNDING[dtype] * 2, "atol": ROUNDING[dtype]}
    found = body.masked_loss(input, target, mask, *NUMBERS[name])
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), loss, **close)
    total, count = body.masked_loss_sum(input, target, mask, *NUMBERS[name])
    assert total.dtype == (torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype)
    assert (count.dtype, count.item()) == (torch.int64, mask.sum().item())
    torch.testing.assert_close(
        total.double(), loss.sum(), rtol=1e-6 if dtype != torch.float64 else 1e-13, atol=0
    )
    slope = body.masked_loss_gradient(grad, input, target, mask, *NUMBERS[name])
    assert slope.dtype == dtype
    assert not slope[~mask].count_nonzero()
    torch.testing.assert_close(
        slope.double(),
        by_input,
        rtol=close["rtol"] * 2,
        atol=close["atol"] * (20 if name == "probabilities" else 2),
    )


@pytest.mark.parametrize("name", list(NUMBERS))
@pytest.mark.parametrize("size", [0, 1, 2, 31, 1023, 1024, 1025, 16_385, 50_021])
def test_any_length(name, size):
    input, target, mask = operands(name, (size,))
    for marks in (mask, torch.zeros_like(mask)):
        (loss, by_input, _), numbers = alone(name, input, target, marks), NUMBERS[name]
        torch.testing.assert_close(
            cpu.masked_loss(input, target, marks, *numbers).double(), loss, rtol=1e-5, atol=1e-6
        )
        total, count = cpu.masked_loss_sum(input, target, marks, *numbers)
        assert count.item() == marks.sum().item()
        torch.testing.assert_close(total.double(), loss.sum(), rtol=1e-6, atol=1e-6)
        slope = cpu.masked_loss_gradient(torch.ones(()), input, target, marks, *numbers)
        torch.testing.assert_close(slope.double(), by_input, rtol=1e-5, atol=1e-5)


def layouts():
    def make():
        return torch.rand(6, 70, 5)

    mask = torch.rand(6, 70, 5) < 0.5
    return {
        "permuted together": (make().permute(2, 0, 1), make().permute(2, 0, 1), mask.permute(2, 0, 1)),
        "target permuted": (make(), torch.rand(5, 70, 6).permute(2, 1, 0), mask),
        "input permuted": (torch.rand(5, 70, 6).permute(2, 1, 0), make(), mask),
        "mask permuted": (make(), make(), (torch.rand(5, 70, 6) < 0.5).permute(2, 1, 0)),
        "sliced": (torch.rand(6, 70, 10)[:, :, ::2], torch.rand(6, 80, 5)[:, 3:73], mask),
        "expanded target": (make(), torch.rand(6, 70, 1).expand(6, 70, 5), mask),
        "expanded row of targets": (make(), torch.rand(5).expand(6, 70, 5), mask),
        "expanded input": (torch.rand(1, 70, 5).expand(6, 70, 5), make(), mask),
        "numbers": (torch.rand(()).expand(6, 70, 5), torch.rand(()).expand(6, 70, 5), mask),
        "token mask": (make(), make(), (torch.rand(6, 70, 1) < 0.5).expand(6, 70, 5)),
        "sample mask": (make(), make(), (torch.rand(6, 1, 1) < 0.5).expand(6, 70, 5)),
        "feature mask": (make(), make(), (torch.rand(5) < 0.5).expand(6, 70, 5)),
        "one number": (torch.rand(()), torch.rand(()), torch.tensor(True)),
        "one unspecified number": (torch.rand(()), torch.rand(()), torch.tensor(False)),
    }


@pytest.mark.parametrize("layout", list(layouts()))
@pytest.mark.parametrize("name", ["huber", "probabilities"])
def test_any_strides(name, layout):
    input, target, mask = layouts()[layout]
    numbers = NUMBERS[name]
    grads = (torch.tensor(3.0), torch.rand(input.shape), torch.rand(input.shape[-1:]))
    grads = (*grads, torch.rand(input.shape[::-1]).permute(tuple(reversed(range(input.ndim)))))
    torch.testing.assert_close(
        cpu.masked_loss(input, target, mask, *numbers), reference.masked_loss(input, target, mask, *numbers)
    )
    for mine, theirs in zip(
        cpu.masked_loss_sum(input, target, mask, *numbers),
        reference.masked_loss_sum(input, target, mask, *numbers),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
    for grad in grads:
        arguments = (grad, input, target, mask, *numbers)
        torch.testing.assert_close(
            cpu.masked_loss_gradient(*arguments),
            reference.masked_loss_gradient(*arguments),
            rtol=1e-5,
            atol=1e-5,
        )


@st.composite
def problems(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    name = draw(st.sampled_from(list(NUMBERS)))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    garbage, density = draw(st.sampled_from(oracles.GARBAGE)), draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    return name, *operands(name, shape, torch.float64, garbage, density), draw(st.booleans())


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@settings(max_examples=examples(100))
@given(problems())
def test_forward_and_backward_agree_with_torch_on_what_is_specified(problem):
    name, input, target, mask, reduce = problem
    loss, *by = alone(name, input, target, mask)
    for body in ("reference", "cpu"):
        x, t = input.clone().requires_grad_(), target.clone().requires_grad_()
        with use_kernels(body), torch.autograd.set_detect_anomaly(True, check_nan=True):
            if reduce:
                result, count = kernels.masked_loss_sum(x, t, mask, *NUMBERS[name])
                assert count.item() == mask.sum().item()
                torch.testing.assert_close(result.detach(), loss.sum(), rtol=1e-12, atol=1e-12)
            else:
                result = kernels.masked_loss(x, t, mask, *NUMBERS[name])
                torch.testing.assert_close(result.detach(), loss, rtol=1e-12, atol=1e-12)
            grads = torch.autograd.grad(result.sum(), (x, t))
        for mine, theirs in zip(grads, by, strict=True):
            assert not mine[~mask].count_nonzero()
            torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("name", list(NUMBERS))
@pytest.mark.parametrize("reduce", [False, True])
def test_first_and_second_derivatives(body, name, reduce):
    input, target, mask = operands(name, (5, 4), torch.float64, 0.5)
    kernel = kernels.masked_loss_sum if reduce else kernels.masked_loss

    def loss(x, t):
        result = kernel(x, t, mask, *NUMBERS[name])
        return result[0] if reduce else result

    leaves = tuple(x.requires_grad_() for x in (input, target))
    with use_kernels(body):
        assert torch.autograd.gradcheck(loss, leaves)
        assert torch.autograd.gradgradcheck(loss, leaves)


def test_gradients_of_several_losses_at_once():
    input, target, mask = operands("logits", (40, 9))
    x = input.requires_grad_()
    loss = kernels.masked_loss(x, target, mask, *NUMBERS["logits"])
    given = torch.randn(3, 40, 9)
    (batched,) = torch.autograd.grad(loss, x, given, is_grads_batched=True, retain_graph=True)
    for row, grad in zip(batched, given, strict=True):
        torch.testing.assert_close(row, torch.autograd.grad(loss, x, grad, retain_graph=True)[0])
    per_sample = torch.func.vmap(lambda a, b, m: kernels.masked_loss_sum(a, b, m, *NUMBERS["logits"])[0])
    torch.testing.assert_close(per_sample(x, target, mask), loss.sum(1))


@pytest.mark.parametrize("name", list(NUMBERS))
def test_what_is_not_finite_and_specified_surfaces_as_in_torch(name):
    if name == "probabilities":
        input, target = (
            torch.tensor([0.0, 1.0, 0.0, 1.0, 1e-30, 1e-40]),
            torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.5]),
        )
    else:
        input = torch.tensor([math.nan, math.inf, -math.inf, 1e38, 88.0, -88.0, -1e38, 0.0])
        target = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    input, target = (
        input.repeat(5).requires_grad_(),
        target.repeat(5),
    )  # torch treats vectors and their rest alike
    mask = torch.ones_like(target, dtype=torch.bool)
    expected = TORCH[name](input, target, reduction="none")
    found = cpu.masked_loss(input.detach(), target, mask, *NUMBERS[name])
    torch.testing.assert_close(found, expected.detach(), equal_nan=True)
    (slope,) = torch.autograd.grad(expected, input, torch.ones_like(expected))
    found = cpu.masked_loss_gradient(torch.ones(()), input.detach(), target, mask, *NUMBERS[name])
    torch.testing.assert_close(found, slope, equal_nan=True)


@pytest.mark.parametrize("kernel", [kernels.masked_loss, kernels.masked_loss_sum])
@pytest.mark.parametrize(("input", "target"), [(1.5, 0.5), (-0.1, 0.5), (0.5, 1.5), (math.nan, 0.5)])
def test_what_is_no_probability_is_refused_where_it_is_specified(kernel, input, target):
    x, t = torch.full((9,), 0.5), torch.full((9,), 0.5)
    x[4], t[4] = input, target
    mask = torch.ones(9, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="should be between 0 and 1"):
        kernel(x, t, mask, "probabilities", ())
    mask[4] = False
    kernel(x, t, mask, "probabilities", ())


def test_results_do_not_depend_on_the_number_of_threads():
    input, target, mask = operands("logits", (1000, 1001))
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append(kernels.masked_loss_sum(input, target, mask, *NUMBERS["logits"])[0])
    finally:
        torch.set_num_threads(threads)
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_sum_of_halves_outgrows_them(dtype):
    input, target = torch.full((70_000,), 10.0, dtype=dtype), torch.zeros(70_000, dtype=dtype)
    total, _ = kernels.masked_loss_sum(input, target, torch.ones(70_000, dtype=torch.bool), *NUMBERS["mse"])
    assert total.item() == 7_000_000


def test_mixed_dtypes_run_the_reference():
    x, t, mask = torch.randn(50), torch.randn(50, dtype=torch.float64), torch.rand(50) < 0.5
    for body in (reference, cpu):
        found = body.masked_loss(x, t, mask, *NUMBERS["mse"])
        torch.testing.assert_close(found, torch.where(mask, (x - t) ** 2, 0).float())


def numbers(dtype):
    """Numbers from the least subnormal one to the largest, and all between 0 and 2 that matter."""
    limits = torch.finfo(dtype)
    powers = torch.logspace(
        -44 if dtype == torch.float32 else -320, 38 if dtype == torch.float32 else 308, 20_001
    )
    return torch.cat(
        [torch.linspace(0, 2, 20_001).to(dtype), powers.to(dtype), torch.tensor([limits.max]).to(dtype)]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_logarithms(dtype):
    """The terms of a binary cross entropy without target, before they are limited to 100."""
    x = numbers(dtype)
    x = x[x <= 1]
    mask, none = torch.ones_like(x, dtype=torch.bool), torch.zeros_like(x)
    for target, exact in ((none + 1, -x.double().log()), (none, -torch.log1p(-x.double()))):
        found = cpu.masked_loss(x, target, mask, "probabilities", ())
        wanted = exact.clamp(max=100)
        bound = torch.finfo(dtype).eps
        assert ((found.double() - wanted).abs() <= 3 * bound * wanted + bound * 0.5).all()
