"""Plain tables under ``unspecified="zero"``: what is saved is complete, and reading rows too early is noticed."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg

ROWS = [torch.tensor([0, 1]), torch.tensor([2]), torch.tensor([0, 2]), torch.tensor([1])]


def trained(build: Any, kind: Any = mg.optim.Adam, **options: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(build())
    optimizer = kind(model.parameters(), lr=0.1, **options)
    for rows in ROWS:
        optimizer.zero_grad()
        model(rows).square().sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.filterwarnings("ignore:with unspecified")
@pytest.mark.parametrize("first", ["model", "optimizer"])
def test_the_state_of_a_model_is_complete(first: str) -> None:
    model, optimizer = trained(lambda: nn.Embedding(4, 2, sparse=True), unspecified="zero")
    states = {}
    for name in (first, "model" if first == "optimizer" else "optimizer"):
        states[name] = copy.deepcopy((model if name == "model" else optimizer).state_dict())
    optimizer.flush()
    assert torch.equal(states["model"]["0.weight"], model[0].weight)
    assert torch.equal(
        states["optimizer"]["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"]
    )
    everything = nn.ModuleDict({"inner": model}).state_dict()
    assert torch.equal(everything["inner.0.weight"], model[0].weight)


def test_rows_that_are_read_too_early_are_noticed_once() -> None:
    with pytest.warns(
        UserWarning, match=r"rows of a Parameter of shape \(4, 2\) .* mg\.nn\.Embedding"
    ) as caught:
        trained(lambda: nn.Embedding(4, 2, sparse=True), unspecified="zero")
    assert len(caught) == 1


@pytest.mark.parametrize("flushed", [False, True])
def test_rows_that_are_read_in_time_are_not(flushed: bool) -> None:
    def table() -> nn.Module:
        made = nn.Embedding(4, 2, sparse=True) if flushed else mg.nn.Embedding(4, 2)
        if flushed:
            made.register_forward_pre_hook(lambda module, _: mg.optim.flush(module))
        return made

    dense, _ = trained(lambda: nn.Embedding(4, 2), torch.optim.Adam)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, _ = trained(table, unspecified="zero")
    torch.testing.assert_close(model.state_dict(), dense.state_dict())


def test_a_checkpoint_with_another_meaning_is_refused() -> None:
    _, skipping = trained(lambda: mg.nn.Embedding(4, 2))
    _, optimizer = trained(lambda: mg.nn.Embedding(4, 2), unspecified="zero")
    state = skipping.state_dict()
    with pytest.raises(ValueError, match=r"unspecified='skip', but .* unspecified='zero'.*param_groups"):
        optimizer.load_state_dict(state)
    for group in state["param_groups"]:
        group["unspecified"] = "zero"  # the remedy
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["unspecified"] == "zero"
