"""Functions of the user get MaskedTensors, whatever rule calls them."""

from __future__ import annotations

from typing import Any

import maskgrad as mg
from maskgrad.semantics.callbacks import call_back
from maskgrad.semantics.entries import Entries
from tests.poison import assert_entries, poisoned


def test_entries_go_out_as_masked_tensors_and_come_back() -> None:
    x = poisoned([1.0, None])
    seen: list[Any] = []

    def double(x: Any, factor: Any) -> Any:
        seen.append(type(x))
        return x * factor

    result = call_back(double, Entries(x._values, x.mask), 2)
    assert seen == [mg.MaskedTensor]
    assert type(result) is Entries
    assert_entries(mg.masked(result.values, result.mask), [2.0, None])
