"""Each public name has one home, and `dir(mg)` shows those of the first floor."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import maskgrad as mg

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from api_pages import GROUPS, PUBLIC_MODULES, names_in_groups

#: Errors are caught as ``mg.X``; the page of ``maskgrad.errors`` says of all of them what they mean.
MORE_THAN_ONE = set(mg.errors.__all__)


def test_each_name_has_one_home() -> None:
    homes = defaultdict(set)
    for module in map(importlib.import_module, PUBLIC_MODULES):
        for name in module.__all__:
            if not inspect.ismodule(getattr(module, name)):
                homes[name, id(getattr(module, name))].add(module.__name__)
    twice = {name: sorted(where) for (name, _), where in homes.items() if len(where) > 1}
    assert not twice.keys() - MORE_THAN_ONE, twice


def test_the_reference_has_each_name_in_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = names_in_groups(mg)
    assert next(iter(groups.values()))[0] == "masked"
    monkeypatch.setattr(mg, "__all__", [*mg.__all__, "use_kernels_"])
    monkeypatch.setattr(mg, "use_kernels_", mg.use_kernels, raising=False)
    with pytest.raises(ValueError, match=r"differ in .*use_kernels_"):
        names_in_groups(mg)
    assert groups is GROUPS


def test_dir_shows_what_is_public_and_nothing_else() -> None:
    assert dir(mg) == sorted([*mg.__all__, "__version__"])
    assert all(getattr(mg, name) is not None for name in dir(mg))
