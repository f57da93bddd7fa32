"""Backward hooks of the old kind say what to use with MaskedTensors, and serve plain tensors as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.module import register_module_backward_hook

import maskgrad as mg
from tests.poison import nan, on

pytestmark = pytest.mark.filterwarnings("ignore:Using.*non-full backward hook:FutureWarning")


class Returning(nn.Module):
    """Gives its input back in some container."""

    def __init__(self, put: Any) -> None:
        super().__init__()
        self.put = put

    def forward(self, x: Any) -> Any:
        return self.put(x)


def masked() -> mg.MaskedTensor:
    return mg.masked(torch.tensor([1.0, nan, 3.0], requires_grad=True), on(1, 0, 1))


@pytest.mark.parametrize(
    "put",
    [
        lambda x: x * 2,
        lambda x: (x * 2, torch.ones(2)),
        lambda x: [[x * 2]],
        lambda x: {"a": x * 2},
        lambda x: {"a": x * 2, "b": [torch.ones(2)]},
        lambda x: x.amax(),
    ],
    ids=["alone", "tuple", "nested", "dict", "dict-of-lists", "scalar"],
)
def test_masked_results_are_refused(put: Any) -> None:
    module = Returning(put)
    module.register_backward_hook(lambda *_: None)
    words = r"Returning\.register_backward_hook does not support .*use register_full_backward_hook"
    with pytest.raises(mg.UnsupportedOperationError, match=words):
        module(masked())
    assert not module._forward_hooks


def test_hooks_of_all_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_module, "_global_is_full_backward_hook", None)  # torch never forgets
    handle = register_module_backward_hook(lambda *_: None)
    try:
        with pytest.raises(mg.UnsupportedOperationError, match=r"Tanh\.register_backward_hook"):
            nn.Tanh()(masked())
    finally:
        handle.remove()
    nn.Tanh()(masked())


@pytest.fixture
def seen() -> list[Any]:
    return []


@pytest.mark.parametrize(
    "put", [lambda x: x * 2, lambda x: (x * 2,), lambda x: {"a": x * 2}], ids=["alone", "tuple", "dict"]
)
def test_plain_results_are_served_as_before(put: Any, seen: list[Any]) -> None:
    module = Returning(put)
    handle = module.register_backward_hook(lambda _, __, given: seen.append(given[0].tolist()))
    found = module(torch.ones(2, requires_grad=True))
    plain = found["a"] if isinstance(found, dict) else found[0] if isinstance(found, tuple) else found
    plain.sum().backward()
    assert seen == [[1.0, 1.0]]
    assert not module._forward_hooks
    handle.remove()
    module(masked())


def test_a_masked_argument_of_a_plain_result_is_no_concern(seen: list[Any]) -> None:
    module = Returning(lambda x: x.filled(0.0))
    module.register_backward_hook(lambda _, __, given: seen.append(given[0].tolist()))
    module(masked()).sum().backward()
    assert seen == [[1.0, 1.0, 1.0]]


def test_a_plain_tensor_first_is_what_torch_finds(seen: list[Any]) -> None:
    module = Returning(lambda x: (x.filled(0.0), x))
    module.register_backward_hook(lambda _, __, given: seen.append(given[0].tolist()))
    module(masked())[0].sum().backward()
    assert seen == [[1.0, 1.0, 1.0]]


def test_results_that_torch_cannot_look_into_are_its_own_affair() -> None:
    module = Returning(lambda _: None)
    module.register_backward_hook(lambda *_: None)
    with pytest.raises(TypeError, match="not subscriptable"):
        module(masked())
