"""Names that were removed say what to write instead."""

from __future__ import annotations

import importlib

import pytest

from maskgrad.removed import removed_names


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in removed_names().items() for n in names])
def test_a_removed_name_says_what_to_write(module: str, name: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"no attribute '{name}': it was removed in version 0\.3; "
    ) as caught:
        getattr(importlib.import_module(module), name)
    assert str(caught.value).endswith(removed_names()[module][name])
    assert not hasattr(importlib.import_module(module), name)


def test_a_name_that_never_was_is_unknown() -> None:
    with pytest.raises(AttributeError, match=r"module 'maskgrad\.distributed' has no attribute 'nosuch'$"):
        importlib.import_module("maskgrad.distributed").nosuch
