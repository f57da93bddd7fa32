"""Gradients per sample of all of torch.nn that has parameters, against a loop: norms, clipped sums, second order."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import maskgrad as mg
from tests.unit.gradients.module_zoo import Specimen, specimens
from tests.unit.gradients.sample_loop import loop, smooth


def batch_of(specimen: Specimen) -> tuple[nn.Module, Any] | None:
    """A module with parameters, and what it is called with; None where that is no batch."""
    torch.manual_seed(0)
    model, args, kwargs = specimen.build()
    sizes = {
        t.shape[0] if t.dim() else 0 for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)
    }
    if not list(model.parameters()) or len(sizes) != 1 or sizes.pop() < 2:
        return None
    if not (args and kwargs):
        return model, args or kwargs
    if any(isinstance(value, Tensor) for value in kwargs.values()):
        return None
    model.forward = functools.partial(model.forward, **kwargs)  # type: ignore[method-assign]
    return model, args


def draws(model: nn.Module) -> bool:
    """Whether it draws random numbers, which nobody draws twice in the same order."""
    dropped = [getattr(m, "dropout", 0.0) for m in model.modules()]
    return model.training and any(isinstance(p, float) and p > 0 for p in dropped)


def is_coupled(model: nn.Module) -> bool:
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return any(m.training or m.running_mean is None for m in norms)


@pytest.mark.nondeterministic
@pytest.mark.filterwarnings("ignore::UserWarning")  # of lazy modules, padded attention, options of a loss
@pytest.mark.parametrize("specimen", list(specimens()), ids=str)
def test_zoo(specimen: Specimen) -> None:
    found = batch_of(specimen)
    if found is None:
        return
    model, inputs = found
    if is_coupled(model):
        for function in (mg.per_sample_grad, mg.per_sample_grad_norms, clipped):
            with pytest.raises(mg.CoupledSamplesError, match="BatchNorm"):
                function(model, smooth, inputs)
        assert all(p.grad is None for p in model.parameters())
    elif not draws(model):
        compare(model, inputs)


def clipped(model: nn.Module, loss_fn: Callable[..., Tensor], inputs: Any) -> Tensor:
    return mg.clipped_backward(model, loss_fn, inputs, max_norm=1.0)


def compare(model: nn.Module, inputs: Any) -> None:
    try:
        expected = loop(model, smooth, inputs)
    except RuntimeError:  # a batch of one sample does not fit the module's other arguments
        return
    for method in ("auto", "loop"):
        found = mg.per_sample_grad(model, smooth, inputs, method=method)  # type: ignore[arg-type]
        assert list(found) == list(expected)
        for name, gradient in found.items():
            torch.testing.assert_close(
                gradient.to_dense(), expected[name], rtol=1e-9, atol=1e-9, equal_nan=True
            )
    squares = torch.stack([g.flatten(1).square().sum(1) for g in expected.values()]).sum(0)
    norms = squares.sqrt()
    found_norms = mg.per_sample_grad_norms(model, smooth, inputs)
    torch.testing.assert_close(found_norms, norms, rtol=1e-7, atol=1e-7, equal_nan=True)

    limit = float(norms.nan_to_num().median()) + 1e-3
    for reduction, parts in (("sum", 1), ("mean", len(norms))):
        model.zero_grad()
        before = mg.clipped_backward(model, smooth, inputs, max_norm=limit, reduction=reduction)  # type: ignore[arg-type]
        torch.testing.assert_close(before, found_norms, equal_nan=True)
        factors = (limit / (norms + 1e-6)).clamp(max=1.0) / parts
        for name, p in model.named_parameters():
            if p.requires_grad:
                wanted = torch.einsum("b,b...->...", factors, expected[name])
                got = torch.zeros_like(p) if p.grad is None else p.grad.to_dense()
                torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-7, equal_nan=True)
    model.zero_grad()
    compare_second_order(model, inputs, expected)


def compare_second_order(model: nn.Module, inputs: Any, expected: dict[str, Tensor]) -> None:
    """The gradient of a function of all gradients per sample, by the parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if any(getattr(module, "sparse", False) for module in model.modules()):
        with pytest.raises(TypeError, match="sparse=False"):
            mg.per_sample_grad(model, smooth, inputs, create_graph=True)
        return
    try:
        by_loop = mg.per_sample_grad(model, smooth, inputs, create_graph=True, method="loop")
    except RuntimeError:  # a gradient without a graph in PyTorch
        return
    found = mg.per_sample_grad(model, smooth, inputs, create_graph=True)
    norms = mg.per_sample_grad_norms(model, smooth, inputs, create_graph=True)
    torch.testing.assert_close(norms, mg.per_sample_grad_norms(model, smooth, inputs), equal_nan=True)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-9, equal_nan=True)
    wanted = slopes(sum_of_squares(by_loop), parameters)
    if wanted is None:  # PyTorch has no second derivative
        return
    torch.testing.assert_close(slopes(sum_of_squares(found), parameters), wanted, equal_nan=True)
    torch.testing.assert_close(slopes(norms.square().sum(), parameters), wanted, equal_nan=True)


def sum_of_squares(gradients: dict[str, Tensor]) -> Tensor:
    return torch.stack([g.square().sum() for g in gradients.values()]).sum()


def slopes(number: Tensor, by: list[nn.Parameter]) -> tuple[Tensor, ...] | None:
    if not number.requires_grad:
        return tuple(torch.zeros_like(p) for p in by)
    try:
        return torch.autograd.grad(number, by, retain_graph=True, materialize_grads=True)
    except RuntimeError:
        return None


def test_the_oracle_of_second_order_is_a_plain_loop() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    parameters = list(model.parameters())
    rows = [torch.autograd.grad(smooth(model(x[i : i + 1])), parameters, create_graph=True) for i in range(4)]
    by_hand = torch.stack([part.square().sum() for row in rows for part in row]).sum()
    for method in ("batched", "loop"):
        for chunk_size in (None, 3):
            found = mg.per_sample_grad(
                model,
                smooth,
                x,
                create_graph=True,
                method=method,
                chunk_size=chunk_size,  # type: ignore[arg-type]
            )
            torch.testing.assert_close(
                torch.autograd.grad(sum_of_squares(found), [x, *parameters]),
                torch.autograd.grad(by_hand, [x, *parameters], retain_graph=True),
            )


@pytest.mark.parametrize("method", ["batched", "loop"])
def test_samples_without_a_loss_send_nothing_in_second_order(method: Any) -> None:
    nan, inf = float("nan"), float("inf")
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    known = torch.tensor([[1, 1], [0, 0], [0, 1], [0, 0]]).bool()
    targets = torch.where(known, 0.5, torch.tensor([nan, inf]).double())

    def penalty(x: Tensor, t: Any) -> Tensor:
        norms = mg.per_sample_grad_norms(
            model, nn.functional.mse_loss, x, t, create_graph=True, method=method
        )
        return norms.sum()

    both = [x, *model.parameters()]
    found = torch.autograd.grad(penalty(x, mg.masked(targets, known)), both)
    kept = mg.masked(torch.full((2, 2), 0.5).double(), known[[0, 2]])
    expected = torch.autograd.grad(penalty(x[[0, 2]], kept), both)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found[0][[1, 3]], torch.zeros(2, 3, dtype=torch.float64))


def test_a_parameter_used_behind_our_back_is_noticed_in_second_order() -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
            self.kept = [self.weight * 3]  # a tensor that depends on it, made before

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight * self.kept[0]

    model, x = Aside(), torch.randn(3, 2, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="reference outside of the module"):
        mg.per_sample_grad(model, smooth, x, create_graph=True, method="batched")
    with pytest.warns(UserWarning, match="by a slow loop over the samples"):
        found = mg.per_sample_grad(model, smooth, x, create_graph=True)["weight"]
    torch.testing.assert_close(found.detach(), loop_twice(model, x))


def loop_twice(model: nn.Module, x: Tensor) -> Tensor:
    weight = dict(model.named_parameters())["weight"]
    rows = [torch.autograd.grad(smooth(model(x[i : i + 1])), weight, retain_graph=True)[0] for i in range(3)]
    return torch.stack(rows)


def test_zoo_is_no_empty_shell() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = {one: batch_of(one) for one in specimens()}
    compared = {
        one.name.split(",")[0].strip()
        for one, found in made.items()
        if found is not None and (is_coupled(found[0]) or not draws(found[0]))
    }
    assert len(compared) > 30
    assert {"nn.Linear", "nn.Conv2d", "nn.LSTM", "nn.MultiheadAttention", "nn.BatchNorm1d"} <= compared
