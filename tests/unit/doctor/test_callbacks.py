from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import maskgrad as mg
from maskgrad.doctor.trainers import _Watching
from maskgrad.errors import MissingDependencyError


@pytest.mark.parametrize(
    ("callback", "package", "modules"),
    [
        (mg.doctor.huggingface_callback, "transformers", ["transformers"]),
        (mg.doctor.lightning_callback, "lightning", ["lightning", "pytorch_lightning"]),
    ],
)
def test_a_trainer_that_is_absent_is_named_with_its_own_package(
    monkeypatch: pytest.MonkeyPatch, callback: Callable[[], Any], package: str, modules: list[str]
) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=rf"pip install {package}$"):
        callback()


def test_a_training_in_which_nothing_was_examined_is_warned_of() -> None:
    watching = _Watching({})
    watching.begin()
    with pytest.warns(UserWarning, match="steps: no backward pass"):
        watching.end()


def test_a_training_that_fails_is_not_warned_of() -> None:
    watching = _Watching({})
    watching.begin()
    try:
        raise ValueError
    except ValueError:
        watching.end()
