"""Losses of large tensors, in one pass: the same numbers, patterns and gradients as step by step."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from maskgrad.semantics.numbers import noting
from tests.poison import nan

SIZE = 50_001  # enough for the compiled bodies


@pytest.mark.parametrize("size", [200, SIZE])
def test_a_loss_of_nothing_is_noted(size: int) -> None:
    for known, expected in ((0, False), (1, True)):
        mask = torch.zeros(size, dtype=torch.bool)
        mask[:known] = True
        with noting() as noted:
            F.mse_loss(mg.masked(torch.rand(size), mask), torch.rand(size))
        assert [bool(flag) for flag in noted] == [expected]


def test_what_is_no_probability_is_refused() -> None:
    data = torch.rand(SIZE)
    data[7] = 1.5
    mask = torch.ones(SIZE, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        F.binary_cross_entropy(mg.masked(data, mask), torch.rand(SIZE))
    mask[7] = False
    assert F.binary_cross_entropy(mg.masked(data, mask), torch.rand(SIZE)).isfinite()


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


SATURATING = [
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits",
    "binary_cross_entropy", "soft_margin_loss",
]  # fmt: skip


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
