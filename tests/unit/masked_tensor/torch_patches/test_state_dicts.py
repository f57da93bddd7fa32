"""What hangs on parameters when modules save and load: rows that wait, and entries that are not trained."""

import copy

import pytest
import torch
from torch import nn

import maskgrad as mg


@pytest.mark.filterwarnings("ignore:with unspecified")
@pytest.mark.parametrize("first", ["model", "optimizer"])
def test_the_state_of_a_model_is_complete(first: str) -> None:
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    optimizer = mg.optim.Adam(model.parameters(), lr=0.1, unspecified="zero")
    for rows in ([0, 1], [2], [0, 2], [1]):
        optimizer.zero_grad()
        model(torch.tensor(rows)).square().sum().backward()
        optimizer.step()
    states = {}
    for name in (first, "model" if first == "optimizer" else "optimizer"):
        states[name] = copy.deepcopy((model if name == "model" else optimizer).state_dict())
    optimizer.flush()
    assert torch.equal(states["model"]["0.weight"], model[0].weight)
    assert torch.equal(
        states["optimizer"]["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"]
    )


def test_a_checkpoint_with_another_meaning_is_refused() -> None:
    weight = nn.Parameter(torch.ones(4, 2))
    state = mg.optim.Adam([weight]).state_dict()
    optimizer = mg.optim.Adam([weight], unspecified="zero")
    with pytest.raises(ValueError, match=r"unspecified='skip', but .* unspecified='zero'.*param_groups"):
        optimizer.load_state_dict(state)
    state["param_groups"][0]["unspecified"] = "zero"  # the remedy
    optimizer.load_state_dict(state)


def test_what_is_assigned_is_trained_where_the_parameter_was() -> None:
    model, mask = nn.Linear(2, 2, bias=False), torch.tensor([[True, False], [False, True]])
    mg.train_only(model.weight, mask)
    model.load_state_dict({"weight": torch.ones(2, 2)}, assign=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.equal(model.weight == 1, ~mask)
    own = nn.Parameter(torch.ones(2, 2))
    mg.train_only(own, ~mask)
    model.load_state_dict({"weight": own}, assign=True)
    assert torch.equal(mg.optim.trained_entries(model.weight), ~mask)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict({"weight": torch.ones(3, 2)}, assign=True)
