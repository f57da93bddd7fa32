"""Step after step with one accumulator: what a step has prepared for the next must not show in it."""

from __future__ import annotations

import copy
import gc
import random
import weakref

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg

GARBAGE = torch.tensor([float("nan"), float("inf"), float("-inf"), 1e38])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def errors(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).square()


def wanted(net: nn.Module, parts: list[Tensor], masks: list[Tensor]) -> dict[str, Tensor | None]:
    """Gradients of the mean over what counts, of one pass over everything in double precision."""
    twin = copy.deepcopy(net).double()
    twin.zero_grad()
    kept = torch.cat([errors(twin, x.double())[mask] for x, mask in zip(parts, masks, strict=True)])
    kept.mean().backward()
    return {name: p.grad for name, p in twin.named_parameters()}


def compare(net: nn.Module, truth: dict[str, Tensor | None]) -> None:
    for name, param in net.named_parameters():
        found = truth[name]
        assert (param.grad is None) == (found is None), name
        if found is not None:
            torch.testing.assert_close(param.grad, found.to(param.dtype), rtol=1e-5, atol=1e-6)


def take_alike_steps(net: nn.Module, accumulator: mg.GradientAccumulator, x: Tensor, number: int = 2) -> None:
    for _ in range(number):
        accumulator.backward(errors(net, x).mean(), count=2 * len(x))
        accumulator.finish()
        net.zero_grad()


@pytest.mark.parametrize("seed", range(6))
def test_random_steps(seed: int) -> None:
    """Means with counts, masked losses, plain ones with masks; frozen layers; other numbers in each step."""
    draw, net = random.Random(seed), network()
    torch.manual_seed(seed)
    accumulator = mg.GradientAccumulator(net)
    likes = [[5, 5, 5], [5, 5, 5], [1, 7], [400], [2, 3, 2, 3]]
    for _ in range(12):
        net[0].requires_grad_(draw.random() < 0.8)
        parts = [torch.randn(rows, 3) for rows in draw.choice(likes)]
        masks = [torch.ones(len(x), 2, dtype=torch.bool) for x in parts]
        for x, mask in zip(parts, masks, strict=True):
            losses, way = errors(net, x), draw.choice(["mean", "mean", "mean", "masked", "mask"])
            if way == "mean":
                accumulator.backward(losses.mean(), count=losses.numel())
                continue
            mask[:] = torch.rand(len(x), 2) < 0.7
            mask[0, 0] = True
            spoilt = torch.where(mask, losses, GARBAGE[torch.randint(0, 4, mask.shape)])
            if way == "masked":
                accumulator.backward(mg.masked(spoilt, mask))
            else:
                accumulator.backward(spoilt, mask=mask)
        mean = accumulator.finish()
        kept = [errors(net, x)[mask] for x, mask in zip(parts, masks, strict=True)]
        torch.testing.assert_close(mean, torch.cat(kept).mean().detach())
        compare(net, wanted(net, parts, masks))
        net.zero_grad()


def test_a_denominator_that_was_expected_is_that_of_one_division() -> None:
    """The second of two equal steps needs no division, and gives the same."""
    net, accumulator, found = network(), None, []
    accumulator = mg.GradientAccumulator(net)
    x = torch.randn(6, 3)
    for _ in range(3):
        for part in x.split(2):
            accumulator.backward(errors(net, part).mean(), count=4)
        accumulator.finish()
        found.append([p.grad.clone() for p in net.parameters()])
        net.zero_grad()
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            torch.testing.assert_close(one, other, rtol=3e-7, atol=1e-8)


def test_losses_with_names_after_one_without() -> None:
    net = network()
    accumulator = mg.GradientAccumulator(net)
    x = torch.randn(4, 3)
    take_alike_steps(net, accumulator, x)
    accumulator.backward({"a": errors(net, x).mean()}, count={"a": 8})
    with pytest.raises(ValueError, match="name the losses of all micro-batches, or of none"):
        accumulator.backward(errors(net, x).mean(), count=8)
    assert set(accumulator.finish()) == {"a"}
    compare(net, wanted(net, [x], [torch.ones(4, 2, dtype=torch.bool)]))


def test_another_dtype_in_the_next_step() -> None:
    net = network()
    accumulator = mg.GradientAccumulator(net)
    x = torch.randn(4, 3)
    single, double, half = torch.float32, torch.float64, torch.bfloat16
    for dtype in (single, double, double, single, half, half):
        net.to(dtype)
        for part in x.to(dtype).split(2):
            losses = errors(net, part)
            accumulator.backward((losses if dtype is double else losses.float()).mean(), count=4)
        mean = accumulator.finish()
        assert mean.dtype is torch.promote_types(dtype, single)
        for param in net.parameters():
            assert param.grad.dtype is dtype
        net.zero_grad()


def test_halves_gather_in_float32_after_steps_in_float32() -> None:
    """A sum of ones in bfloat16 stops at 256."""
    w = nn.Parameter(torch.ones(()))
    accumulator = mg.GradientAccumulator([w])
    for _ in range(2):
        accumulator.backward(w.float() * 0.5, count=1)
        accumulator.finish()
        w.grad = None
    w.data = w.data.bfloat16()
    for number in range(513):
        accumulator.backward(w.float() * (1.0 if number else 0.0), count=1)
    accumulator.finish()
    torch.testing.assert_close(w.grad.float(), torch.tensor(512 / 513), rtol=4e-3, atol=0)


def test_losses_in_halves_are_not_divided_in_advance() -> None:
    """A step of one loss after one of 98,304 = 3 * 2**15, of which float16 holds no reciprocal."""
    w = nn.Parameter(torch.ones(()))
    accumulator = mg.GradientAccumulator([w])
    for count in (98_304, 98_304, 1):
        accumulator.backward((w * 1.0).half(), count=count)
        accumulator.finish()
        assert w.grad == 1.0
        w.grad = None


def test_gradients_are_the_users_after_finish() -> None:
    net = network()
    accumulator = mg.GradientAccumulator(net)
    for _ in range(2):
        accumulator.backward(errors(net, torch.randn(4, 3)).mean(), count=8)
        accumulator.finish()
        dead = weakref.ref(net[0].weight.grad)
        net.zero_grad()
        gc.collect()
        assert dead() is None


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_plain_backward_of_some_parameters_is_noticed(layer: int, steps: int) -> None:
    net = network()
    accumulator = mg.GradientAccumulator(net)
    take_alike_steps(net, accumulator, torch.randn(4, 3), steps)
    accumulator.backward(errors(net, torch.randn(4, 3)).mean(), count=8)
    net[layer].weight.sum().backward()
    for call in (
        lambda: accumulator.backward(errors(net, torch.randn(4, 3)).mean(), count=8),
        accumulator.finish,
    ):
        with pytest.raises(RuntimeError, match=r"a plain backward\(\).*accumulator\.reset"):
            call()
    accumulator.reset()
    accumulator.backward(errors(net, torch.randn(4, 3)).mean(), count=8)
    accumulator.finish()


def test_a_pass_that_fails_after_others() -> None:
    net = network()
    accumulator = mg.GradientAccumulator(net)
    x = torch.randn(4, 3)
    take_alike_steps(net, accumulator, x)
    loss = errors(net, x).mean()
    loss.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        accumulator.backward(loss, count=8)
    with pytest.raises(RuntimeError, match="midway"):
        accumulator.finish()


def test_one_without_a_name_after_nothing_of_one_with_a_name() -> None:
    net = network()
    accumulator = mg.GradientAccumulator(net)
    x = torch.randn(4, 3)
    accumulator.backward(errors(net, x).mean(), count=8)
    accumulator.finish()
    net.zero_grad()
    accumulator.backward({"a": None})
    with pytest.raises(ValueError, match="name the losses of all micro-batches, or of none"):
        accumulator.backward(errors(net, x).mean(), count=8)
