"""Losses of large tensors, in one pass: the same numbers, patterns and gradients as step by step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from maskgrad.semantics.numbers import noting
from tests.poison import assert_nothing, gradient, nan

SIZE = 50_001  # enough for the compiled bodies
PAIRS: dict[str, Callable[..., Any]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": lambda x, t, **options: F.huber_loss(x, t, delta=0.3, **options),
    "smooth_l1": lambda x, t, **options: F.smooth_l1_loss(x, t, beta=2.0, **options),
    "smooth_l1 of 0": lambda x, t, **options: F.smooth_l1_loss(x, t, beta=0.0, **options),
    "logits": F.binary_cross_entropy_with_logits,
    "probabilities": F.binary_cross_entropy,
}


Loss = Callable[[torch.Tensor], Any]


def filled(result: mg.MaskedTensor | torch.Tensor) -> torch.Tensor:
    """One loss for each position is masked; reduced, it is a number."""
    return result.filled(0.0) if isinstance(result, mg.MaskedTensor) else result


def both_ways(loss: Loss, data: torch.Tensor) -> list[tuple[Any, torch.Tensor]]:
    results = []
    for body in ("cpu", "reference"):
        leaf = data.clone().requires_grad_()
        with mg.use_kernels(body):
            result = loss(leaf)
            (filled(result) * torch.linspace(1, 2, result.numel()).view(result.shape)).sum().backward()
        assert leaf.grad is not None
        results.append((result.detach(), leaf.grad))
    return results


def assert_same(loss: Loss, data: torch.Tensor, unspecified: torch.Tensor, reduced: bool) -> None:
    (mine, by), (theirs, wanted) = both_ways(loss, data)
    assert mine.dtype == theirs.dtype
    assert type(mine) is type(theirs) is (torch.Tensor if reduced else mg.MaskedTensor)
    assert reduced or torch.equal(mine.mask, theirs.mask)
    torch.testing.assert_close(filled(mine), filled(theirs), rtol=2e-6, atol=2e-6, equal_nan=reduced)
    assert not by[unspecified].count_nonzero()
    torch.testing.assert_close(by, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", list(PAIRS))
@pytest.mark.parametrize("masked", ["input", "target", "both"])
def test_pairs(name: str, reduction: str, masked: str) -> None:
    data, target = torch.rand(SIZE), torch.rand(SIZE)
    mask, other = torch.rand(SIZE) < 0.5, torch.rand(SIZE) < 0.5
    if masked != "target":
        data[~mask] = nan
    if masked != "input":
        target[~other] = math.inf
    t = target if masked == "input" else mg.masked(target, other)

    def loss(leaf: torch.Tensor) -> Any:
        x = leaf if masked == "target" else mg.masked(leaf, mask)
        return PAIRS[name](x, t, reduction=reduction)

    specified = {"input": mask, "target": other, "both": mask & other}[masked]
    assert_same(loss, data, ~specified, reduction != "none")
    if reduction == "none":
        assert int(loss(data).num_specified()) == int(specified.sum())


@pytest.mark.parametrize("name", list(PAIRS))
def test_nothing_is_specified(name: str) -> None:
    data, none = torch.full((SIZE,), nan), torch.zeros(SIZE, dtype=torch.bool)
    for reduction, number in (("none", None), ("mean", nan), ("sum", 0.0)):
        leaf = data.clone().requires_grad_()
        result = PAIRS[name](mg.masked(leaf, none), torch.rand(SIZE), reduction=reduction)
        if number is None:
            assert not result.mask.any()
            assert not gradient(result, leaf).count_nonzero()
        else:
            assert_nothing(result, number, leaf)


@pytest.mark.parametrize("size", [200, SIZE])
def test_a_loss_of_nothing_is_noted(size: int) -> None:
    for known, expected in ((0, False), (1, True)):
        mask = torch.zeros(size, dtype=torch.bool)
        mask[:known] = True
        with noting() as noted:
            F.mse_loss(mg.masked(torch.rand(size), mask), torch.rand(size))
        assert [bool(flag) for flag in noted] == [expected]


def test_what_pytorch_refuses_and_warns_of() -> None:
    x, t = mg.masked(torch.rand(SIZE), torch.rand(SIZE) < 0.5), torch.rand(SIZE)
    with pytest.raises(RuntimeError, match="negative values for beta"):
        F.smooth_l1_loss(x, t, beta=-1.0)
    with pytest.warns(UserWarning, match="different to the input size"):
        assert F.l1_loss(x, torch.rand(1)).isfinite()


def test_what_is_no_probability_is_refused() -> None:
    data = torch.rand(SIZE)
    data[7] = 1.5
    mask = torch.ones(SIZE, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        F.binary_cross_entropy(mg.masked(data, mask), torch.rand(SIZE))
    mask[7] = False
    assert F.binary_cross_entropy(mg.masked(data, mask), torch.rand(SIZE)).isfinite()


CALLS = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "ignored": {"ignore_index": 3},
    "smooth": {"label_smoothing": 0.2},
    "weighted": {"weight": torch.arange(1.0, 8.0)},
    "weighted none, ignored": {"weight": torch.arange(1.0, 8.0), "ignore_index": 2, "reduction": "none"},
}


@pytest.mark.parametrize("shape", [(6000, 7), (20, 7, 300), (7,)])
@pytest.mark.parametrize("call", list(CALLS))
@pytest.mark.parametrize("masked", ["classes", "labels", "both", "neither class"])
def test_cross_entropy(masked: str, call: str, shape: tuple[int, ...]) -> None:
    dim = 1 if len(shape) > 1 else 0
    data, labels = torch.randn(shape), torch.randint(7, shape[:dim] + shape[dim + 1 :])
    mask, known = torch.rand(shape) < 0.6, torch.rand(labels.shape) < 0.7
    if masked == "neither class":
        mask = mask & known.unsqueeze(dim)
    if masked != "labels":
        data = data.masked_fill(~mask, nan)
    target: Any = labels
    if masked in ("labels", "both"):
        target = mg.masked(labels.masked_fill(~known, 10**9), known)

    def loss(leaf: torch.Tensor) -> Any:
        x = leaf if masked == "labels" else mg.masked(leaf, mask)
        return F.cross_entropy(x, target, **CALLS[call])  # type: ignore[arg-type]

    unspecified = (~known).unsqueeze(dim).expand(shape) if masked == "labels" else ~mask
    assert_same(loss, data, unspecified, CALLS[call].get("reduction") != "none")


def test_labels_outside_the_classes_are_refused() -> None:
    x, labels = mg.masked(torch.randn(6000, 7), torch.rand(6000, 7) < 0.9), torch.randint(7, (6000,))
    labels[17] = 7
    with pytest.raises(IndexError, match="out of bounds"):
        F.cross_entropy(x, labels)
    labels[17] = -100
    assert F.cross_entropy(x, labels).isfinite()


def test_a_specified_nan_at_a_position_that_takes_no_part_reaches_nothing() -> None:
    data, known = torch.randn(6000, 7), torch.rand(6000) < 0.5
    data[~known] = nan
    leaf, labels = data.clone().requires_grad_(), torch.randint(7, (6000,))
    loss = F.cross_entropy(leaf, mg.masked(labels, known))
    loss.backward()
    assert loss.item() == pytest.approx(F.cross_entropy(data[known], labels[known]).item(), rel=1e-5)
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()
    assert not leaf.grad[~known].count_nonzero()


@pytest.mark.parametrize("name", ["mse", "logits"])
def test_second_derivatives(name: str) -> None:
    data, target, mask = torch.rand(40).double(), torch.rand(40).double(), torch.rand(40) < 0.5
    results = []
    for body in ("cpu", "reference"):
        x = data.clone().requires_grad_()
        with mg.use_kernels(body):
            loss = PAIRS[name](mg.masked(x.exp(), mask), target)
            (first,) = torch.autograd.grad(loss, x, create_graph=True)
            (second,) = torch.autograd.grad((first**2).sum(), x)
        results.append(second)
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_added_up_in_float32(dtype: torch.dtype) -> None:
    x = mg.masked(torch.full((70_000,), 2.0, dtype=dtype), torch.rand(70_000) < 0.5)
    loss = F.mse_loss(x, torch.zeros(70_000, dtype=dtype))
    assert loss.dtype == dtype
    assert loss.item() == 4.0
    scores = mg.masked(torch.zeros(5000, 8, dtype=dtype), torch.ones(5000, 8, dtype=torch.bool))
    loss = F.cross_entropy(scores, torch.zeros(5000, dtype=torch.int64))
    assert loss.dtype == dtype
    assert loss.item() == pytest.approx(math.log(8), rel=4e-3)


SATURATING = [
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy_with_logits",
    "binary_cross_entropy",
    "soft_margin_loss",
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", SATURATING)
def test_halves_are_rounded_once_whichever_body_runs(name: str, reduction: str, dtype: torch.dtype) -> None:
    """Saturated logits: computed in halves, this loss is half of what it is, or below 0."""
    torch.manual_seed(2)
    target = (torch.rand(400) < 0.5).to(dtype)
    logits = ((target * 2 - 1) * (6 + 4 * torch.rand(400))).to(dtype)
    data = logits.sigmoid() if name == "binary_cross_entropy" else logits
    target = target * 2 - 1 if name == "soft_margin_loss" else target
    mask = torch.rand(400) < 0.7
    loss = getattr(F, name)
    exact = loss(data[mask].double(), target[mask].double(), reduction=reduction)
    for body in ("reference", "cpu"):
        with mg.use_kernels(body):
            leaf = data.clone().requires_grad_()
            found = loss(mg.masked(leaf, mask), target, reduction=reduction)
            assert found.dtype == dtype
            plain = found.compressed() if isinstance(found, mg.MaskedTensor) else found
            torch.testing.assert_close(plain, exact.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
            (gradient,) = torch.autograd.grad(plain.sum(), leaf)
            assert gradient.dtype == dtype
            assert not gradient[~mask].count_nonzero()


@pytest.mark.parametrize("size", [100, 500, 3_000])
@pytest.mark.parametrize("name", list(PAIRS))
def test_few_halves_are_rounded_once(name: str, size: int) -> None:
    data, target = (torch.rand(size).clamp(0.05, 0.95).bfloat16() for _ in range(2))
    mask = torch.rand(size) < 0.7
    found = PAIRS[name](mg.masked(data, mask), target, reduction="none")
    exact = PAIRS[name](data.float(), target.float(), reduction="none").bfloat16()
    torch.testing.assert_close(found.filled(0.0)[mask], exact[mask], rtol=8e-3, atol=1e-6)
    apart = (found.filled(0.0)[mask] != exact[mask]).sum()
    assert apart <= size / 100  # on the border between two halves
