"""States of other optimizers and of other models are refused before anything of the live state is touched."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from maskgrad import optim
from maskgrad.optim.optimizer import MaskedOptimizer
from tests.unit.optim.optimizers import NAMES, OPTIONS, bits, every_optimizer, every_plain_optimizer
from tests.unit.optim.test_all_or_nothing import assert_unchanged, snapshot

# A state has no name on it. Those of a kind cannot be told apart: AdamW is Adam with another option, and RAdam's
# is what Adam's was before AMSGrad.
INTERCHANGEABLE = {("Adam", "AdamW"), ("AdamW", "Adam"), ("RAdam", "Adam"), ("RAdam", "AdamW")}


def pickled(pair: Any) -> Any:
    return pickle.loads(pickle.dumps(pair))


def stepped(kind: Any, *, size: int = 2, **options: Any) -> torch.optim.Optimizer:
    p = nn.Parameter(torch.ones(size))
    optimizer: torch.optim.Optimizer = kind([p], **options)
    p.grad = torch.ones(size)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("theirs", [*NAMES, "SparseAdam"])
@pytest.mark.parametrize("ours", NAMES)
def test_a_state_of_another_optimizer_is_refused(ours: str, theirs: str) -> None:
    if ours == theirs or (theirs, ours) in INTERCHANGEABLE:
        return
    momentum = {"momentum": 0.9} if theirs == "SGD" else {}
    if theirs == "SparseAdam":
        p = nn.Parameter(torch.ones(2))
        p.grad = torch.ones(2).to_sparse()
        donors: list[torch.optim.Optimizer] = [torch.optim.SparseAdam([p])]
        donors[0].step()
        if ours in ("Adam",):
            getattr(optim, ours)([p]).load_state_dict(donors[0].state_dict())
            return
    else:
        donors = [stepped(getattr(optim, theirs), **momentum)]
        if hasattr(torch.optim, theirs):
            donors.append(stepped(getattr(torch.optim, theirs), **momentum))
    optimizer = stepped(getattr(optim, ours))
    before = snapshot(optimizer)
    for donor in donors:
        with pytest.raises(
            ValueError, match=rf"the loaded state (is not from {ours}: its|of .* but {ours} needs)"
        ):
            optimizer.load_state_dict(donor.state_dict())
        assert_unchanged(optimizer, before)
    optimizer.step()


@every_optimizer
def test_a_state_of_another_shape_is_not_loaded(
    ours: type[MaskedOptimizer], theirs: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    donor, optimizer = stepped(ours, **options), stepped(ours, size=3, **options)
    if not any(value.dim() for entry in donor.state.values() for value in entry.values()):
        return
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match=r"of parameter 0 of group 0 has shape \(2,\)"):
        optimizer.load_state_dict(donor.state_dict())
    assert_unchanged(optimizer, before)
    optimizer.step()


@every_plain_optimizer
def test_an_incomplete_state_is_not_loaded(
    ours: type[MaskedOptimizer], theirs: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    optimizer = stepped(ours, **options)
    before = snapshot(optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    for name in list(saved["state"].get(0, {})):
        spoiled = copy.deepcopy(saved)
        del spoiled["state"][0][name]
        if spoiled["state"][0]:
            with pytest.raises(
                ValueError, match=f"the loaded state of parameter 0 of group 0 has .* but {ours.__name__}"
            ):
                optimizer.load_state_dict(spoiled)
            assert_unchanged(optimizer, before)
        spoiled["state"][0] |= saved["state"][0] | {"unheard_of": torch.ones(2)}
        with pytest.raises(ValueError, match=r"has .*unheard_of"):
            optimizer.load_state_dict(spoiled)
        assert_unchanged(optimizer, before)
    spoiled = copy.deepcopy(saved)
    spoiled["param_groups"][0]["lr"] = -1.0
    with pytest.raises(ValueError, match="lr must be at least 0"):
        optimizer.load_state_dict(spoiled)
    del spoiled["param_groups"][0]["lr"]
    with pytest.raises(ValueError, match="its parameter group has no lr; load a state of"):
        optimizer.load_state_dict(spoiled)
    assert_unchanged(optimizer, before)


def test_a_number_for_the_whole_parameter_must_be_one() -> None:
    optimizer = stepped(optim.NAdam)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["mu_product"] = torch.ones(2)
    with pytest.raises(ValueError, match=r"state 'mu_product' of parameter 0 of group 0 must be a scalar"):
        optimizer.load_state_dict(saved)


@every_optimizer
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copy_goes_on_as_the_original(
    copied: Callable[[Any], Any],
    ours: type[MaskedOptimizer],
    theirs: type[torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p = nn.Parameter(torch.randn(3, 2))
    optimizer = ours([p], **options)
    gradients = torch.randn(4, 3, 2)
    for gradient in gradients[:2]:
        p.grad = gradient.clone()
        optimizer.step()
    p.grad = None
    again, q = copied((optimizer, p))
    assert again.param_groups[0]["params"][0] is q
    for gradient in gradients[2:]:
        p.grad, q.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        again.step()
    assert torch.equal(bits(p), bits(q))


@every_plain_optimizer
def test_options_of_ours_survive_a_state_of_torch(
    ours: type[MaskedOptimizer], theirs: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    if not hasattr(torch.optim, ours.__name__):
        return
    optimizer = stepped(ours, **options)
    optimizer.load_state_dict(stepped(theirs, **options).state_dict())
    assert optimizer.param_groups[0]["unspecified"] == "skip"
    assert optimizer.param_groups[0]["state"] == "full"
    assert optimizer.param_groups[0].keys() - {"params"} == optimizer.defaults.keys()


@every_optimizer
def test_step_counts_that_are_numbers_are_taken_over(
    ours: type[MaskedOptimizer], theirs: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    first, second = stepped(ours, **options), stepped(ours, **options)
    saved = copy.deepcopy(first.state_dict())
    for entry in saved["state"].values():
        for name in entry.keys() & {"step", "mu_product", "eta", "mu"}:
            entry[name] = entry[name].item()
    second.load_state_dict(saved)
    first.step()
    second.step()
    one, other = (optimizer.param_groups[0]["params"][0] for optimizer in (first, second))
    assert torch.equal(bits(one), bits(other))


def test_adamw_stays_decoupled_whatever_is_loaded() -> None:
    optimizer = stepped(optim.AdamW)
    optimizer.load_state_dict(stepped(torch.optim.Adam, weight_decay=0.5).state_dict())
    assert optimizer.param_groups[0]["decoupled_weight_decay"] is True
    assert optimizer.param_groups[0]["weight_decay"] == 0.5


def test_scalars_of_half_parameters_are_kept_in_float32() -> None:
    # Loading casts them to the parameter's dtype, as in torch.
    p = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = optim.NAdam([p])
    p.grad = torch.ones(2, dtype=torch.bfloat16)
    optimizer.step()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.step()
    assert optimizer.state[p]["mu_product"].dtype == torch.float32


def test_every_case_has_an_optimizer() -> None:
    assert {ours.__name__ for ours, _, _ in OPTIONS.values()} == set(NAMES)
