"""What every optimizer refuses, and that a refused step has changed nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from maskgrad.masked_tensor import masked
from maskgrad.optim.optimizer import MaskedOptimizer
from tests.unit.optim.kinds import coo
from tests.unit.optim.optimizers import NAN, PAPERS, accepts, bits, every_optimizer


def snapshot(optimizer: torch.optim.Optimizer) -> list[Any]:
    params = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
    return [params, copy.deepcopy(optimizer.state_dict())]


def assert_unchanged(optimizer: torch.optim.Optimizer, before: list[Any]) -> None:
    params, state = snapshot(optimizer)
    for now, then in zip(params, before[0], strict=True):
        assert torch.equal(bits(now), bits(then))
    assert state["state"].keys() == before[1]["state"].keys()
    for key, entry in state["state"].items():
        assert entry.keys() == before[1]["state"][key].keys()
        for name, value in entry.items():
            assert torch.equal(value, before[1]["state"][key][name]), name


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "index too large": (
        coo([[0, 3]], torch.ones(2, 1), (3, 1)),
        IndexError,
        "index 3 of entry 1 is outside the size 3",
    ),
    "index negative": (coo([[-2, 0]], torch.ones(2, 1), (3, 1)), IndexError, "index -2 of entry 0"),
    "shape": (torch.ones(2, 1), ValueError, r"shape \(2, 1\), but the parameter has shape \(3, 1\)"),
    "device": (torch.ones(3, 1, device="meta"), ValueError, "is on meta"),
    "dtype": (torch.ones(3, 1, dtype=torch.int32), TypeError, "dtype torch.int32"),
    "complex": (torch.ones(3, 1, dtype=torch.complex64), TypeError, "dtype torch.complex64"),
}


@every_optimizer
@pytest.mark.parametrize(("bad", "error", "words"), BAD.values(), ids=BAD.keys())
def test_a_step_is_all_or_nothing(
    bad: Any,
    error: type[Exception],
    words: str,
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    good, spoiled = nn.Parameter(torch.ones(3, 1)), nn.Parameter(torch.ones(3, 1))
    optimizer = ours([{"params": [good]}, {"params": [spoiled], "lr": 0.2}], **options)
    for p in (good, spoiled):
        p.grad = torch.ones(3, 1)
    optimizer.step()
    spoiled.grad = None
    # Past the check of attach_gradient, as a gradient that was changed afterwards would be.
    spoiled._maskgrad_gradient = bad
    before = snapshot(optimizer)
    with pytest.raises(error, match=words) as refusal:
        optimizer.step()
    assert "parameter 0 of group 1" in str(refusal.value)
    assert_unchanged(optimizer, before)


@every_optimizer
def test_a_hyperparameter_spoiled_on_the_way_stops_the_step(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = ours([{"params": [p]}, {"params": [q]}], **options)
    p.grad = q.grad = torch.ones(3)
    for name, value in (("lr", NAN), ("lr", -1.0), ("weight_decay", float("inf"))):
        if name not in optimizer.defaults:
            continue
        before = snapshot(optimizer)
        kept = optimizer.param_groups[1][name]
        optimizer.param_groups[1][name] = value
        with pytest.raises(ValueError, match=name):
            optimizer.step()
        optimizer.param_groups[1][name] = kept
        assert_unchanged(optimizer, before)


@every_optimizer
def test_a_state_that_lost_its_shape_stops_the_step(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = ours([p], **options)
    p.grad = torch.ones(3)
    optimizer.step()
    spoiled = [key for key, value in optimizer.state[p].items() if value.shape == p.shape]
    for key in spoiled:
        kept = optimizer.state[p][key]
        optimizer.state[p][key] = torch.ones(2)
        before = snapshot(optimizer)
        with pytest.raises(
            ValueError, match=f"state '{key}' of parameter 0 of group 0 has shape .2,. on cpu"
        ):
            optimizer.step()
        assert_unchanged(optimizer, before)
        optimizer.state[p][key] = kept
    optimizer.step()


@every_optimizer
def test_names_of_parameters_appear_in_errors(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    model = nn.Embedding(3, 1, sparse=True)
    optimizer = ours(model.named_parameters(), **options)
    model.weight.grad = coo([[7]], torch.ones(1, 1), (3, 1))
    with pytest.raises(IndexError, match=r"gradient of parameter 'weight', dimension 0: index 7 of entry 0"):
        optimizer.step()


@every_optimizer
def test_what_is_refused_at_construction(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p = [nn.Parameter(torch.ones(2))]
    refused: list[tuple[dict[str, Any], str]] = [
        ({"unspecified": "all"}, "unspecified='all' is not available; use"),
        ({"state": "half"}, "state='half' is not available; use"),
        *(
            [({"differentiable": True}, "differentiable=True is not available")]
            if theirs in PAPERS.values()
            else []
        ),
        ({"lr": -0.1}, "lr must be at least 0, got -0.1"),
        ({"lr": NAN}, "lr must be finite, got nan"),
        ({"lr": torch.tensor([0.1, 0.2])}, "lr must be a scalar"),
        ({"weight_decay": -1}, "weight_decay must be at least 0, got -1"),
    ]
    for bad, words in refused:
        if not all(accepts(ours, name) for name in bad):
            continue
        with pytest.raises(ValueError, match=words):
            ours(p, **{**options, **bad})
    with pytest.raises(TypeError, match="lr must be a number or a tensor with one element, got 'fast'"):
        ours(p, **{**options, "lr": "fast"})
    with pytest.raises(TypeError, match="parameter 0 of group 0 is a sparse tensor"):
        ours([torch.eye(2).to_sparse().requires_grad_()], **options)
    with pytest.raises(TypeError, match=r"parameter 0 of group 0 has dtype torch\.int64"):
        ours([torch.ones(2, dtype=torch.int64)], **options)


@every_optimizer
def test_a_refused_group_is_not_added(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p, q = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = ours([p], **options)
    with pytest.raises(ValueError, match="lr must be at least 0"):
        optimizer.add_param_group({"params": [q], "lr": -1.0})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [q], "lr": 0.5})
    p.grad = q.grad = torch.ones(2)
    optimizer.step()
    assert p[0] != 1
    assert q[0] != 1


@every_optimizer
def test_a_parameter_with_two_gradients_is_refused(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = ours([p], **options)
    p._maskgrad_gradient = masked(torch.ones(2), torch.tensor([True, False]))  # type: ignore[attr-defined]  # as on XLA
    p.grad = torch.ones(2)
    with pytest.raises(ValueError, match=r"parameter 0 of group 0 has an attached gradient and a \.grad"):
        optimizer.step()
    assert p.tolist() == [1.0, 1.0]
