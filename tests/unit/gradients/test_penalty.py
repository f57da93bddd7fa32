"""Penalties on gradient norms: values, second derivatives, zero gradients, masks, scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.poison import assert_entries, assert_nothing, inf, leaf, nan

D = torch.float64


def critic() -> nn.Module:
    """Scores one number per sample."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def norms_of(model: nn.Module, x: Tensor) -> Tensor:
    """Norm of each sample's gradient by its input, by the loop."""
    rows = []
    for i in range(len(x)):
        one = x[i : i + 1].detach().requires_grad_()
        gradient, *_ = torch.autograd.grad(model(one).sum(), one, create_graph=True)
        rows.append(gradient.norm())
    return torch.stack(rows)


def test_the_squared_norm_over_all_parameters() -> None:
    w, v, idle = leaf(1.0, 2.0), leaf(3.0), leaf(5.0)
    penalty = mg.gradient_penalty((w**3).sum() + (v**2).sum() * w[0], [w, v, idle])
    # gradients: (3 + 9, 12) and 6
    torch.testing.assert_close(penalty, torch.tensor(144.0 + 144 + 36, dtype=D))
    penalty.backward()
    torch.testing.assert_close(w.grad, torch.tensor([2 * 12 * 6 + 2 * 6 * 6, 2 * 12 * 12.0], dtype=D))
    torch.testing.assert_close(v.grad, torch.tensor([2 * 12 * 6 + 2 * 6 * 2.0], dtype=D))
    assert idle.grad is None


def test_several_inputs_make_one_norm() -> None:
    a, b = torch.randn(4, 2, dtype=D, requires_grad=True), torch.randn(4, 3, dtype=D, requires_grad=True)
    unused = torch.randn(4, 3, dtype=D, requires_grad=True)
    y = (a.sin().sum(1) * b.cos().sum(1))[:, None]
    found = mg.gradient_penalty(y, (x for x in (a, b, unused)), per_sample=True, reduction="none")
    ga, gb = torch.autograd.grad(y.sum(), [a, b])
    torch.testing.assert_close(found, ga.square().sum(1) + gb.square().sum(1))
    nothing = torch.empty(0, 3, dtype=D, requires_grad=True)
    assert mg.gradient_penalty(nothing.sum(1), nothing, per_sample=True, reduction="sum") == 0
    w = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    assert mg.gradient_penalty((w * w.conj()).real.sum(), w) == 4 * (1 + 4 + 9 + 1)


OPTIONS: list[tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = [
    ({}, lambda n: n**2),
    ({"power": 1}, lambda n: n),
    ({"target": 1.0}, lambda n: (n - 1) ** 2),
    ({"target": 0.3, "one_sided": True}, lambda n: (n - 0.3).clamp(min=0) ** 2),
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
    for got, want in zip(
        torch.autograd.grad(found.sum(), weights), torch.autograd.grad(expected.sum(), weights), strict=True
    ):
        torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("options", [options for options, _ in OPTIONS], ids=str)
def test_a_zero_gradient_gives_no_nan(options: dict[str, Any]) -> None:
    with torch.autograd.detect_anomaly():
        w = leaf(0.0, 0.0)
        mg.gradient_penalty((w**2).sum(), [w], **options).backward()
        assert w.grad is not None
        assert not w.grad.any()
        x, scale = leaf([0.0, 0.0], [1.0, 2.0]), leaf(2.0)
        mg.gradient_penalty((x**2).sum(1) * scale, x, per_sample=True, **options).backward()
        assert scale.grad is not None
        assert scale.grad.isfinite().all()


@pytest.mark.parametrize("garbage", [nan, inf, 1e38])
def test_masked_losses_outputs_and_inputs(garbage: float) -> None:
    model, x = critic(), torch.randn(4, 3, dtype=D, requires_grad=True)
    kept = torch.tensor([[True], [False], [True], [False]])
    scores = model(x)
    masked = mg.masked(torch.where(kept, scores, garbage), kept)
    found = mg.gradient_penalty(masked, x, per_sample=True, target=1.0)
    assert type(found) is Tensor
    torch.testing.assert_close(found, (norms_of(model, x)[[0, 2]] - 1).square().mean())
    found.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())

    w = leaf(1.0, 2.0, 3.0)
    mask = torch.tensor([True, False, True])
    incomplete = mg.masked(torch.where(mask, w, garbage), mask)
    penalty = mg.gradient_penalty((incomplete**2).sum(), incomplete)
    assert type(penalty) is Tensor
    assert penalty.item() == 4 + 36
    penalty.backward()
    torch.testing.assert_close(w.grad, torch.tensor([8.0, 0.0, 24.0], dtype=D))

    # w is used as a plain tensor, too, and that part of its gradient is none of the masked tensor's.
    view = mg.masked(w, mask)
    elsewhere = mg.gradient_penalty((view**2).sum() + (5 * w).sum(), view)
    assert elsewhere.item() == 7**2 + 11**2


@pytest.mark.parametrize("garbage", [nan, inf, 1e38])
@pytest.mark.parametrize(("options", "cost"), OPTIONS, ids=[str(options) for options, _ in OPTIONS])
def test_a_loss_of_nothing_has_a_gradient_of_norm_zero(
    garbage: float, options: dict[str, Any], cost: Callable[[Tensor], Tensor]
) -> None:
    w, mask = leaf(1.0, 2.0, 3.0), torch.zeros(3, dtype=torch.bool)
    nothing = mg.masked(torch.where(mask, w, garbage), mask)
    for loss in (nothing.sum(), nothing.mean(), (nothing**2).std(), nothing.amax()):
        penalty = mg.gradient_penalty(loss, w, **options)
        if isinstance(loss, mg.MaskedTensor):
            assert isinstance(penalty, mg.MaskedTensor)
            assert not penalty.mask
        else:
            assert type(penalty) is Tensor
            assert penalty == cost(torch.zeros((), dtype=D))
        if penalty.requires_grad:
            (gradient,) = torch.autograd.grad(penalty.sum(), w, retain_graph=True, allow_unused=True)
            assert gradient is None or not gradient.count_nonzero()


def test_samples_of_which_nothing_is_specified_do_not_count() -> None:
    w = leaf(2.0, 3.0)
    values = torch.tensor([[1.0, nan], [nan, nan], [2.0, 1.0]], dtype=D, requires_grad=True)
    x = mg.masked(values, torch.tensor([[1, 0], [0, 0], [1, 1]]).bool())
    found = mg.gradient_penalty((x * w).sum(1), x, per_sample=True, target=1.0)
    expected = [(2 - 1) ** 2, (13**0.5 - 1) ** 2]
    torch.testing.assert_close(found, torch.tensor(sum(expected) / 2, dtype=D))
    each = mg.gradient_penalty((x * w).sum(1), x, per_sample=True, target=1.0, reduction="none")
    assert_entries(each, [expected[0], None, expected[1]])
    row = x[1:2]
    for reduction, number in (("mean", nan), ("sum", 0.0)):
        none = mg.gradient_penalty(
            (row * w).sum(1),
            row,
            per_sample=True,
            target=1.0,
            reduction=reduction,  # type: ignore[arg-type]
        )
        assert_nothing(none, number, w)


@pytest.mark.parametrize("scale", [1.0, 8.0, 65536.0])
@pytest.mark.parametrize("per_sample", [False, True])
def test_the_gradient_is_unscaled_before_its_norm_is_taken(scale: float, per_sample: bool) -> None:
    for scaler in (mg.amp.GradScaler("cpu", init_scale=scale), torch.amp.GradScaler("cpu", init_scale=scale)):
        w = torch.tensor([[1.0], [2.0]], requires_grad=True)
        loss = (w**3).sum(1)
        penalty = mg.gradient_penalty(
            loss if per_sample else loss.sum(), w, scaler, per_sample=per_sample, reduction="sum"
        )
        torch.testing.assert_close(penalty, torch.tensor(153.0))
        optimizer = torch.optim.SGD([w], lr=1.0)
        scaler.scale(penalty).backward()
        scaler.unscale_(optimizer)
        torch.testing.assert_close(w.grad, torch.tensor([[36.0], [288.0]]))


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("table", [nn.Embedding, mg.nn.Embedding])
def test_sparse_tables(table: Any, power: Literal[1, 2]) -> None:
    rows = torch.tensor([[1, 2, 1], [0, 2, 2]])
    found = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.ModuleList([table(5, 3, sparse=sparse, padding_idx=0, dtype=D), nn.Linear(3, 2, dtype=D)])
        loss = model[1](model[0](rows).tanh()).square().sum() + model[0](rows[:1]).pow(3).sum()
        penalty = mg.gradient_penalty(loss, model.parameters(), power=power)
        (penalty + loss).backward()
        gradients = [p.grad.to_dense() for p in model.parameters() if p.grad is not None]
        found.append([penalty.detach(), *gradients])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


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
        (lambda: mg.gradient_penalty((W**2).sum(), [3.0]), TypeError, "parameters must be tensors"),  # type: ignore[list-item]
        (lambda: mg.gradient_penalty((W**2).sum(), [W.detach()]), ValueError, "requires a gradient"),
        (lambda: mg.gradient_penalty((W**2).sum(), [leaf(1.0)]), ValueError, "must depend on one of params"),
        (lambda: mg.gradient_penalty(W**2, [W]), ValueError, "scalar"),
        (lambda: mg.gradient_penalty(W**2, leaf(1.0, 2.0), per_sample=True), ValueError, "graph"),
        (lambda: mg.gradient_penalty(W**2 * W.sum(), W, per_sample=True), mg.CoupledSamplesError, "independent"),
        (lambda: mg.gradient_penalty(mg.from_sparse(CSR).square().sum(), CSR), Exception, r"from_sparse\(t\.detach"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
