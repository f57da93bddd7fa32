from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import maskgrad as mg
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
