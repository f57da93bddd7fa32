"""Penalties on gradient norms: values, second derivatives, zero gradients, masks, scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maskgrad as mg
from tests.poison import assert_entries, assert_nothing, inf, leaf, nan

D = torch.float64


def critic() -> nn.Module:
    """Scores one number per sample."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def norms_of(model: nn.Module, x: Tensor) -> Tensor:
    """Norm of each sample's gradient by its input, by the loop."""
    rows = [row.detach().requires_grad_() for row in x]
    return torch.stack([torch.autograd.grad(model(r), r, create_graph=True)[0].norm() for r in rows])


def test_several_tensors_make_one_norm() -> None:
    w, v, idle = leaf(1.0, 2.0), leaf(3.0), leaf(5.0)
    penalty = mg.gradient_penalty((w**3).sum() + (v**2).sum() * w[0], [w, v, idle])
    # gradients: (3 + 9, 12) and 6
    torch.testing.assert_close(penalty, torch.tensor(144.0 + 144 + 36, dtype=D))
    penalty.backward()
    torch.testing.assert_close(w.grad, torch.tensor([2 * 12 * 6 + 2 * 6 * 6, 2 * 12 * 12.0], dtype=D))
    torch.testing.assert_close(v.grad, torch.tensor([2 * 12 * 6 + 2 * 6 * 2.0], dtype=D))
    assert idle.grad is None
    a, b, unused = (torch.randn(4, n, dtype=D, requires_grad=True) for n in (2, 3, 3))
    y = (a.sin().sum(1) * b.cos().sum(1))[:, None]
    found = mg.gradient_penalty(y, (x for x in (a, b, unused)), per_sample=True, reduction="none")
    ga, gb = torch.autograd.grad(y.sum(), [a, b])
    torch.testing.assert_close(found, ga.square().sum(1) + gb.square().sum(1))
    table = leaf([1.0], [2.0])
    looked_up = F.embedding(torch.tensor([0, 1, 0]), table, sparse=True)
    penalty = mg.gradient_penalty(looked_up.square().sum(), table)  # of the gradients 4 and 4
    assert penalty == 32
    assert torch.autograd.grad(penalty, table)[0].to_dense().tolist() == [[32.0], [16.0]]
    nothing = torch.empty(0, 3, dtype=D, requires_grad=True)
    assert mg.gradient_penalty(nothing.sum(1), nothing, per_sample=True, reduction="sum") == 0
    z = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    assert mg.gradient_penalty((z * z.conj()).real.sum(), z) == 4 * (1 + 4 + 9 + 1)
    assert mg.gradient_penalty(w**2, w, per_sample=True, reduction="none").tolist() == [4.0, 16.0]


OPTIONS: list[tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = [
    ({}, lambda n: n**2),
    ({"power": 1}, lambda n: n),
    ({"target": 1.0}, lambda n: (n - 1) ** 2),
    ({"target": 1.0, "power": 1}, lambda n: (n - 1).abs()),
    ({"target": 0.3, "one_sided": True, "power": 1}, lambda n: (n - 0.3).clamp(min=0)),
]


@pytest.mark.parametrize(("options", "cost"), OPTIONS, ids=[str(options) for options, _ in OPTIONS])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_penalty_of_each_sample_equals_the_loop(
    options: dict[str, Any], cost: Callable[[Tensor], Tensor], reduction: str
) -> None:
    model, x = critic(), torch.randn(5, 3, dtype=D, requires_grad=True)
    expected = cost(norms_of(model, x))
    if reduction != "none":
        expected = getattr(expected, reduction)()
    found = mg.gradient_penalty(model(x), x, per_sample=True, reduction=reduction, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected)
    weights = list(model.parameters())[:3]
    slopes = [torch.autograd.grad(number.sum(), weights) for number in (found, expected)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("options", [options for options, _ in OPTIONS], ids=str)
def test_a_zero_gradient_gives_no_nan(options: dict[str, Any]) -> None:
    w, x, scale = leaf(0.0, 0.0), leaf([0.0, 0.0], [1.0, 2.0]), leaf(2.0)
    mg.gradient_penalty((w**2).sum(), [w], **options).backward()
    assert w.grad is not None
    assert not w.grad.any()
    mg.gradient_penalty((x**2).sum(1) * scale, x, per_sample=True, **options).backward()
    assert scale.grad is not None
    assert scale.grad.isfinite().all()


@pytest.mark.parametrize("garbage", [nan, inf, 1e38])
def test_masked_losses_outputs_and_inputs(garbage: float) -> None:
    model, x = critic(), torch.randn(4, 3, dtype=D, requires_grad=True)
    kept = torch.tensor([[True], [False], [True], [False]])
    masked = mg.masked(torch.where(kept, model(x), garbage), kept)
    found = mg.gradient_penalty(masked, x, per_sample=True, target=1.0)
    assert type(found) is Tensor
    torch.testing.assert_close(found, (norms_of(model, x)[[0, 2]] - 1).square().mean())
    found.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())

    w = leaf(1.0, 2.0, 3.0)
    mask = torch.tensor([True, False, True])
    incomplete = mg.masked(torch.where(mask, w, garbage), mask)
    penalty = mg.gradient_penalty((incomplete**2).sum(), incomplete)
    assert penalty.item() == 4 + 36
    penalty.backward()
    torch.testing.assert_close(w.grad, torch.tensor([8.0, 0.0, 24.0], dtype=D))

    # w is used as a plain tensor, too, and that part of its gradient is none of the masked tensor's.
    view = mg.masked(w, mask)
    elsewhere = mg.gradient_penalty((view**2).sum() + (5 * w).sum(), view)
    assert elsewhere.item() == 7**2 + 11**2


def test_a_loss_of_nothing_has_a_gradient_of_norm_zero() -> None:
    w, mask = leaf(1.0, 2.0, 3.0), torch.zeros(3, dtype=torch.bool)
    nothing = mg.masked(torch.where(mask, w, nan), mask)
    assert mg.gradient_penalty(nothing.mean(), w, target=0.5) == 0.25
    masked = mg.gradient_penalty(nothing[0], w)
    assert isinstance(masked, mg.MaskedTensor)
    assert not masked.mask


def test_samples_of_which_nothing_is_specified_do_not_count() -> None:
    w = leaf(2.0, 3.0)
    values = torch.tensor([[1.0, nan], [nan, nan], [2.0, 1.0]], dtype=D, requires_grad=True)
    x = mg.masked(values, torch.tensor([[1, 0], [0, 0], [1, 1]]).bool())
    expected = [(2 - 1) ** 2, (13**0.5 - 1) ** 2]

    def penalty(rows: Any, reduction: Any) -> Any:
        return mg.gradient_penalty((rows * w).sum(1), rows, per_sample=True, target=1.0, reduction=reduction)

    torch.testing.assert_close(penalty(x, "mean"), torch.tensor(sum(expected) / 2, dtype=D))
    assert_entries(penalty(x, "none"), [expected[0], None, expected[1]])
    assert_nothing(penalty(x[1:2], "mean"), nan, w)
    assert_nothing(penalty(x[1:2], "sum"), 0.0, w)


@pytest.mark.parametrize("per_sample", [False, True])
def test_the_gradient_is_unscaled_before_its_norm_is_taken(per_sample: bool) -> None:
    scaler, w = mg.amp.GradScaler("cpu", init_scale=65536.0), leaf([1.0], [2.0], dtype=torch.float32)
    loss = (w**3).sum(1) if per_sample else (w**3).sum()
    penalty = mg.gradient_penalty(loss, w, scaler, per_sample=per_sample, reduction="sum")
    torch.testing.assert_close(penalty, torch.tensor(153.0))
    scaler.scale(penalty).backward()
    scaler.unscale_(torch.optim.SGD([w], lr=1.0))
    torch.testing.assert_close(w.grad, torch.tensor([[36.0], [288.0]]))


W = leaf(1.0, 2.0)
CSR = torch.eye(3).to_sparse_csr().requires_grad_()


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: mg.gradient_penalty((W**2).sum(), [W], power=3), ValueError, "power must be 1 or 2"),  # type: ignore[arg-type]
        (lambda: mg.gradient_penalty((W**2).sum(), [W], reduction="max"), ValueError, "reduction"),  # type: ignore[arg-type]
        (lambda: mg.gradient_penalty((W**2).sum(), [W], one_sided=True), ValueError, "target"),
        (lambda: mg.gradient_penalty(3.0, [W]), TypeError, "loss must be a tensor"),  # type: ignore[arg-type]
        (lambda: mg.gradient_penalty((W.detach() ** 2).sum(), [W]), ValueError, "must be in a graph"),
        (lambda: mg.gradient_penalty((W**2).sum(), []), ValueError, "params"),
        (lambda: mg.gradient_penalty((W**2).sum(), [W.detach()]), ValueError, "requires a gradient"),
        (lambda: mg.gradient_penalty((W**2).sum(), [leaf(1.0)]), ValueError, "must depend on one of params"),
        (lambda: mg.gradient_penalty(W**2, [W]), ValueError, "scalar"),
        (lambda: mg.gradient_penalty(W**2 * W.sum(), W, per_sample=True), mg.CoupledSamplesError, "independent"),
        (lambda: mg.gradient_penalty(mg.from_sparse(CSR).square().sum(), CSR), Exception, r"from_sparse\(t\.detach"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
