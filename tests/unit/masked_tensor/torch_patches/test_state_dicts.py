"""What hangs on parameters when modules save and load: rows that wait, and entries that are not trained."""

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
        UserWarning,
        match=r"rows of parameter 0 of group 0, a Parameter of shape \(4, 2\), .* mg\.nn\.Embedding",
    ) as caught:
        trained(lambda: nn.Embedding(4, 2, sparse=True), unspecified="zero")
    assert len(caught) == 1


def test_rows_that_are_flushed_in_time_are_not() -> None:
    def table() -> nn.Module:
        made = nn.Embedding(4, 2, sparse=True)
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


def test_what_is_assigned_is_trained_where_the_parameter_was() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    mask = torch.tensor([[True, False], [False, True]])
    mg.train_only(model.weight, mask)
    model.load_state_dict(other.state_dict(), assign=True)
    before = model.weight.detach().clone()
    assert torch.equal(before, other.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.equal(model.weight[~mask], before[~mask])
    assert (model.weight[mask] != before[mask]).all()
    own = nn.Parameter(torch.ones(2, 2))
    mg.train_only(own, ~mask)
    model.load_state_dict({"weight": own, "bias": torch.zeros(2)}, assign=True)
    trained = mg.optim.trained_entries(model.weight)
    assert trained is not None
    assert torch.equal(trained, ~mask)
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict({"weight": torch.ones(3, 2), "bias": torch.zeros(2)}, assign=True)
