"""Copies, files and conversions of modules: values of pending steps, and masks of train_only."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg

WAYS: dict[str, Callable[[Any], Any]] = {
    "double": lambda net: net.double(),
    "apply": lambda net: net._apply(lambda t: t.clone()),
    "deepcopy": copy.deepcopy,
    "saved": lambda net: _loaded(net),  # noqa: PLW0108
}


def _loaded(net: Any) -> Any:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.fixture(params=["in place", "swap", "overwrite"])
def conversion(request: pytest.FixtureRequest) -> Iterator[str]:
    """How a module converts its parameters."""
    torch.__future__.set_swap_module_params_on_conversion(request.param == "swap")
    torch.__future__.set_overwrite_module_params_on_conversion(request.param == "overwrite")
    yield request.param
    torch.__future__.set_swap_module_params_on_conversion(False)
    torch.__future__.set_overwrite_module_params_on_conversion(False)


@pytest.mark.parametrize("table", [nn.Embedding, mg.nn.Embedding])
@pytest.mark.parametrize("way", WAYS)
def test_pending_steps_are_in_copies_and_conversions(conversion: str, way: str, table: Any) -> None:
    net, dense = table(4, 2), nn.Embedding(4, 2)
    dense.load_state_dict(net.state_dict())
    optimizer = mg.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.5, unspecified="zero")
    wanted = torch.optim.SGD(dense.parameters(), lr=0.1, weight_decay=0.5)
    for rows in ([0, 1, 2, 3], [1], [2]):
        net.weight.grad = torch.sparse_coo_tensor(torch.tensor([rows]), torch.ones(len(rows), 2), (4, 2))
        dense.weight.grad = net.weight.grad.to_dense()
        optimizer.step()
        wanted.step()
    new = WAYS[way](net)
    torch.testing.assert_close(new.weight.float(), dense.weight)
    if way in ("double", "apply") and conversion != "overwrite":  # training goes on
        assert new.weight is optimizer.param_groups[0]["params"][0]


@pytest.mark.parametrize("way", WAYS)
def test_only_the_same_entries_are_trained(conversion: str, way: str) -> None:
    net, mask = nn.Linear(3, 2, bias=False), torch.tensor([[True, False, True], [False, True, True]])
    mg.train_only(net.weight, mask)
    net.weight.note = "mine"
    net.other = nn.Linear(3, 2, bias=False)
    net.other.weight = net.weight  # shared
    new = WAYS[way](net)
    before = new.weight.detach().clone()
    new(torch.ones(1, 3, dtype=before.dtype)).sum().backward()
    torch.optim.SGD(new.parameters(), lr=1.0).step()
    torch.testing.assert_close(new.weight.detach(), before - mask.to(before.dtype))
    if new.weight is not net.weight:  # a mask of its own
        mg.train_only(new.weight, None)
        assert mg.optim.trained_entries(net.weight) is not None
    if way in ("deepcopy", "saved"):
        assert hasattr(new.weight, "note") == (way == "saved")  # other attributes, as in PyTorch
        assert new.other.weight is new.weight
