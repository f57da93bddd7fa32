"""Calls of loops that are repeated: other memory, the same results as a first call."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from maskgrad import kernels
from maskgrad.kernels import use_kernels
from maskgrad.kernels.cpu.repeated import recorded
from maskgrad.kernels.cpu.threads import noted_runs
from maskgrad.kernels.filling import cpu
from maskgrad.kernels.selection import KERNELS
from tests.unit.kernels.masks import soiled

KNOWN = {
    "masked_sum": ((1,), False, None),
    "masked_mean": ((0,), True, None),
    "masked_extremum": ((1,), False, True),
    "masked_variance": ((1,), False, 1.0),
    "masked_layer_norm": (1, None, None, 1e-5, True),
    "masked_logsumexp": ((0,), False),
    "masked_cumsum": (1, False),
    "masked_filling": (0.0,),
}


@pytest.fixture(autouse=True)
def _forgotten():
    for kernel in KERNELS.values():
        kernel._repeated.clear()


def _sample(shape=(30, 40), dtype=torch.float32):
    mask = torch.rand(shape) < 0.6
    return soiled(torch.randn(shape).to(dtype), mask, float("nan")), mask


@pytest.mark.parametrize("name", KNOWN)
def test_a_repeated_call_is_like_a_first_one(name):
    kernel, options = KERNELS[name], KNOWN[name]
    with use_kernels("cpu"):
        for _ in range(2):  # recorded when it comes again
            kernel(*_sample(), *options)
        assert [bool(call) for call in kernel._repeated.values()] == [True]
        for _ in range(3):
            values, mask = _sample()
            found = kernel(values, mask, *options)
            kernel._repeated.clear()
            expected = kernel(values, mask, *options)
            pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
            for x, y in pairs:
                assert x.dtype == y.dtype
                assert x.stride() == y.stride()
                assert torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0))


def test_softmax_of_long_rows_is_repeated():
    softmax = KERNELS["masked_softmax"]
    for _ in range(4):
        values, mask = _sample((30, 200))
        found = mg.masked(values, mask).softmax(1)
        torch.testing.assert_close(found.filled(0.0), torch.where(mask, values, -torch.inf).softmax(1))
        with pytest.raises(IndexError):
            mg.masked(values, mask).softmax(2)
    assert [bool(call) for call in softmax._repeated.values()] == [True]


def test_layer_norm_with_weights_is_repeated():
    backward = KERNELS["masked_layer_norm_backward"]
    for _ in range(4):
        values, mask = _sample()
        leaf, weight, bias = (x.requires_grad_() for x in (values.clone(), torch.randn(40), torch.randn(40)))
        grad = torch.randn(30, 40)
        F.layer_norm(mg.masked(leaf, mask), (40,), weight, bias).filled(0.0).backward(grad)
        with use_kernels("reference"):
            again = [x.detach().clone().requires_grad_() for x in (leaf, weight, bias)]
            F.layer_norm(mg.masked(again[0], mask), (40,), *again[1:]).filled(0.0).backward(grad)
        for x, y in zip((leaf, weight, bias), again, strict=True):
            torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)
    assert [bool(call) for call in backward._repeated.values()] == [True]


def test_a_known_call_with_a_gradient_is_recorded():
    mean = KERNELS["masked_mean"]
    with use_kernels("cpu"):
        for _ in range(3):
            values, mask = _sample()
            found, count = mean(values.requires_grad_(), mask, (1,), False, None)
            assert found.requires_grad
            assert not count.requires_grad
        with torch.no_grad():
            assert not mean(values, mask, (1,), False, None)[0].requires_grad
        assert mean.repeated(values, mask, (1,), False, None)[0].requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_dtype_or_stride_is_another_call(dtype):
    with use_kernels("cpu"):
        for values, mask in (_sample(), _sample(dtype=dtype), [x.t() for x in _sample((40, 30))]) * 3:
            found, present = kernels.masked_sum(values, mask, (1,), False)
            torch.testing.assert_close(found, torch.where(mask, values, 0).sum(1), rtol=1e-2, atol=1e-2)
            assert torch.equal(present, mask.any(1))


def test_signs_of_zeros_differ():
    values, mask = _sample()
    with use_kernels("cpu"):
        for _ in range(4):
            for filler in (0.0, -0.0, np.float64(0.0), np.float64(-0.0)):
                found = kernels.masked_filling(values, mask, filler)
                assert torch.equal(
                    found.signbit()[~mask], torch.full(((~mask).sum(),), filler.hex()[0] == "-")
                )


def test_large_integers_differ():
    values, mask = torch.arange(1200).view(30, 40), torch.rand(30, 40) < 0.6
    with use_kernels("cpu"):
        for filler in (2**53, 2**53 + 1, -(2**63)) * 3:
            found = kernels.masked_filling(values, mask, filler)
            assert torch.equal(found, torch.where(mask, values, filler))


def test_few_values_run_the_reference_although_a_call_is_known():
    values, mask = _sample((4, 20))
    with use_kernels("cpu"):
        for _ in range(2):
            kernels.masked_mean(values, mask, (1,), False)
    assert any(KERNELS["masked_mean"]._repeated.values())
    assert KERNELS["masked_mean"].repeated(values, mask, (1,), False, None) is None
    more = _sample()
    with use_kernels("cpu"):
        for _ in range(2):
            kernels.masked_mean(*more, (1,), False)
    assert KERNELS["masked_mean"].repeated(*more, (1,), False, None) is not None
    leaf = more[0].requires_grad_()  # then kernels start at more values
    assert KERNELS["masked_mean"].repeated(leaf, more[1], (1,), False, None) is None
    with use_kernels("reference"):
        assert KERNELS["masked_mean"].repeated(*_sample(), (1,), False, None) is None


def test_a_mistake_after_a_known_call_is_found():
    values, mask = _sample()
    with use_kernels("cpu"):
        for _ in range(3):
            kernels.masked_sum(values, mask, (1,), False)
        with pytest.raises(ValueError, match="mask must have the shape of values"):
            kernels.masked_sum(values, mask[:, :1], (1,), False)
        with pytest.raises(TypeError, match="mask must be a Boolean tensor"):
            kernels.masked_sum(values, mask.float(), (1,), False)


def test_what_reads_results_is_not_repeated():
    p, mask = torch.rand(30, 40), torch.rand(30, 40) < 0.6
    wrong = p.clone()
    wrong[mask.nonzero()[0].tolist()[0], mask.nonzero()[0].tolist()[1]] = 2.0
    with use_kernels("cpu"):
        for _ in range(3):
            F.binary_cross_entropy(mg.masked(p, mask), torch.ones_like(p), reduction="none")
            with pytest.raises(RuntimeError, match="between 0 and 1"):
                F.binary_cross_entropy(mg.masked(wrong, mask), torch.ones_like(p), reduction="none")


def test_two_names_for_one_memory_are_not_repeated():
    x, y, mask = torch.randn(30, 40), torch.randn(30, 40), torch.rand(30, 40) < 0.6
    with use_kernels("cpu"):
        loss = KERNELS["masked_loss"]
        for target in (x, x, y, y, y, x):
            found = loss(x, target, mask, "distance", (1.0, 9.0, 0.0, 0.0))
            torch.testing.assert_close(found, torch.where(mask, (x - target) ** 2, 0))


def test_loops_of_other_threads_are_not_noted():
    values, mask = _sample()
    with use_kernels("cpu"), noted_runs() as runs:
        thread = threading.Thread(target=lambda: kernels.masked_sum(values, mask, (1,), False))
        thread.start()
        thread.join()
    assert runs == []


def test_a_body_that_computes_runs_again():
    x = torch.randn(30)
    result, call = recorded(lambda t: t + 1, (x,), [x])
    assert torch.equal(result, x + 1)
    assert call is None


def test_a_copy_is_made_again():
    backward = KERNELS["masked_logsumexp_backward"]
    with use_kernels("cpu"):
        for _ in range(3):  # the mask lies in memory in another order than the values
            arguments = (
                torch.randn(30, 1),
                torch.randn(40, 30).t(),
                torch.randn(30, 1),
                torch.rand(30, 40) < 0.6,
            )
            torch.testing.assert_close(backward(*arguments), backward.reference(*arguments))


@pytest.mark.parametrize("write", [torch.Tensor.copy_, torch.Tensor.add_, torch.Tensor.fill_])
def test_a_body_that_writes_runs_again(write):
    values, mask = _sample()

    def body(values, mask):
        operand = values if write is torch.Tensor.copy_ else 1.0
        return cpu.masked_filling(write(torch.empty_like(values), operand), mask, 0.0)

    assert recorded(cpu.masked_filling, (values, mask, 0.0), [values, mask])[1] is not None
    assert recorded(body, (values, mask), [values, mask])[1] is None


def test_gradients_of_repeated_calls():
    with use_kernels("cpu"):
        for _ in range(4):
            values, mask = _sample(dtype=torch.float64)
            leaf = values.clone().requires_grad_()
            x = mg.masked(leaf, mask)
            (x.var(1) + x.amax(1) + x.mean(1) + x.logsumexp(1)).filled(0.0).sum().backward()
            alone = torch.zeros_like(values)
            for r in range(30):
                row = values[r][mask[r]].requires_grad_()
                if len(row) > 1:
                    (row.var() + row.amax() + row.mean() + row.logsumexp(0)).backward()
                    alone[r][mask[r]] = row.grad
            torch.testing.assert_close(leaf.grad, alone)
