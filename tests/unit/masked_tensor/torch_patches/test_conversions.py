"""Copies, files and conversions of modules: values of pending steps, and masks of train_only."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg

WAYS: dict[str, Callable[[Any], Any]] = {
    "double": lambda net: net.double(),
    "to": lambda net: net.to(torch.float64),
    "apply": lambda net: net._apply(lambda t: t.clone()),
    "deepcopy": copy.deepcopy,
    "copied parameters": lambda net: _with(copy.copy(net), copy.copy(net.weight)),
    "pickled parameter": lambda net: _with(copy.copy(net), pickle.loads(pickle.dumps(net.weight))),
    "saved": lambda net: _loaded(net),  # noqa: PLW0108
    "an average": lambda net: torch.optim.swa_utils.AveragedModel(net).module,
}
MODES = ("in place", "swap", "overwrite")


def _with(net: Any, weight: Any) -> Any:
    net._parameters = net._parameters | {"weight": weight}
    return net


def _loaded(net: Any) -> Any:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.fixture(params=MODES)
def conversion(request: pytest.FixtureRequest) -> Iterator[str]:
    """How a module converts its parameters."""
    torch.__future__.set_swap_module_params_on_conversion(request.param == "swap")
    torch.__future__.set_overwrite_module_params_on_conversion(request.param == "overwrite")
    yield request.param
    torch.__future__.set_swap_module_params_on_conversion(False)
    torch.__future__.set_overwrite_module_params_on_conversion(False)


def _rows(*rows: int) -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([rows]), torch.ones(len(rows), 2), (4, 2))


def _stepped(net: Any, kind: Any, **options: Any) -> Any:
    optimizer = kind(net.parameters(), lr=0.1, weight_decay=0.5, **options)
    for rows in ((0, 1, 2, 3), (1,), (2,)):
        net.weight.grad = _rows(*rows) if options else _rows(*rows).to_dense()
        optimizer.step()
    net.weight.grad = None
    return optimizer


@pytest.mark.parametrize("table", [nn.Embedding, mg.nn.Embedding])
@pytest.mark.parametrize("way", WAYS)
def test_pending_steps_are_in_copies_and_conversions(conversion: str, way: str, table: Any) -> None:
    net, dense = table(4, 2), nn.Embedding(4, 2)
    dense.load_state_dict(net.state_dict())
    optimizer, wanted = _stepped(net, mg.optim.SGD, unspecified="zero"), _stepped(dense, torch.optim.SGD)
    new = WAYS[way](net)
    torch.testing.assert_close(new.weight.float(), dense.weight)
    if way in ("double", "to", "apply") and conversion != "overwrite":  # training goes on
        dense = WAYS[way](dense)
        assert new.weight is optimizer.param_groups[0]["params"][0]
        for some in ((3,), (0,)):
            for one, layer, sparse in ((optimizer, new, True), (wanted, dense, False)):
                gradient = _rows(*some).to(layer.weight.dtype)
                layer.weight.grad = gradient if sparse else gradient.to_dense()
                one.step()
        mg.optim.flush(new)
        torch.testing.assert_close(new.weight.float(), dense.weight.float())


@pytest.mark.parametrize("way", WAYS)
def test_only_the_same_entries_are_trained(conversion: str, way: str) -> None:
    net, mask = nn.Linear(3, 2, bias=False), torch.tensor([[True, False, True], [False, True, True]])
    mg.train_only(net.weight, mask)
    new = WAYS[way](net)
    before = new.weight.detach().clone()
    optimizer = torch.optim.SGD(new.parameters(), lr=1.0)
    new(torch.ones(1, 3, dtype=before.dtype)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(new.weight.detach(), before - mask.to(before.dtype))
    if new.weight is not net.weight:  # a mask of its own
        mg.train_only(new.weight, None)
        assert mg.optim.trained_entries(net.weight) is not None


def test_other_attributes_are_copied_as_pytorch_does() -> None:
    net = nn.Linear(3, 2)
    net.weight.note = "mine"
    mg.train_only(net.weight, torch.ones(2, 3, dtype=torch.bool))
    assert not hasattr(copy.deepcopy(net).weight, "note")
    assert _loaded(net).weight.note == "mine"


def test_shared_parameters_stay_shared() -> None:
    net = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    net[1].weight = net[0].weight
    mg.train_only(net[0].weight, torch.ones(2, 2, dtype=torch.bool))
    for new in (copy.deepcopy(net), _loaded(net)):
        assert new[0].weight is new[1].weight


def test_a_table_is_freed_at_once() -> None:
    net = nn.Embedding(4, 2)
    _stepped(net, mg.optim.SGD, unspecified="zero")
    gone = weakref.ref(net.weight)
    gc.disable()
    try:
        del net
        assert gone() is None
    finally:
        gc.enable()
