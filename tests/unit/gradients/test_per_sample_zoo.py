"""Gradients per sample of all of torch.nn that has parameters, against a loop: norms and clipped sums."""

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
