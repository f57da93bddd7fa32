"""None, and mg.unspecified outside of an assignment, are no values: refused with what removes entries.

PyTorch refuses them itself in functions, such as ``torch.where(condition, x, None)``, before it calls ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, on, poisoned

ROWS, AT = torch.tensor([0]), on([1, 0], [0, 0])
WRITES: dict[str, Callable[[mg.MaskedTensor, Any], Any]] = {
    "masked_fill": lambda x, value: x.masked_fill(AT, value),
    "masked_fill, value=": lambda x, value: x.masked_fill(AT, value=value),
    "where": lambda x, value: x.where(AT, value),
    "where, other=": lambda x, value: x.where(AT, other=value),
    "fill_": lambda x, value: x.fill_(value),
    "index_fill": lambda x, value: x.index_fill(0, ROWS, value),
    "index_put_": lambda x, value: x.index_put_((ROWS,), value),
    "index_copy": lambda x, value: x.index_copy(0, ROWS, value),
    "put_": lambda x, value: x.put_(ROWS, value),
    "scatter": lambda x, value: x.scatter(0, ROWS[None], value),
    "masked_scatter": lambda x, value: x.masked_scatter(AT, value),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("value", [None, mg.unspecified], ids=str)
def test_a_write_of_no_value_is_refused_and_changes_nothing(name: str, value: object) -> None:
    x = poisoned([[1.0, None], [3.0, 4.0]])
    with pytest.raises(TypeError, match=r"found (None|maskgrad.unspecified); .*x\[index\] = mg.unspecified"):
        WRITES[name](x, value)
    assert_entries(x, [[1.0, None], [3.0, 4.0]])


@pytest.mark.parametrize("value", [None, np.ma.masked], ids=str)
@pytest.mark.parametrize("index", [(0, 0), 0, ..., AT])
def test_an_assignment_of_none_is_refused(index: Any, value: Any) -> None:
    """It did nothing to the values, and specified what was there."""
    x = poisoned([[1.0, None], [3.0, 4.0]])
    with pytest.raises(
        TypeError, match=r"value must be a tensor or a number, found (None|masked); .*unspecified"
    ):
        x[index] = value
    assert_entries(x, [[1.0, None], [3.0, 4.0]])
    x[AT] = mg.unspecified
    assert_entries(x, [[None, None], [3.0, 4.0]])


def test_arguments_that_may_be_none_still_may() -> None:
    x = poisoned([[1.0, None], [3.0, 4.0]])
    assert_entries(x[None], [[[1.0, None], [3.0, 4.0]]])
    assert_entries(torch.nn.functional.pad(x, (1, 0), value=None), [[0.0, 1.0, None], [0.0, 3.0, 4.0]])
    assert_entries(x.clamp(None, 3.0), [[1.0, None], [3.0, 3.0]])
    assert_entries(x.slice_scatter(torch.zeros(2, 2), 0, None, None), [[0.0, 0.0], [0.0, 0.0]])


@pytest.mark.parametrize("value", ["mean", None, mg.unspecified], ids=str)
def test_filled_takes_values(value: Any) -> None:
    x = poisoned([1.0, None, 3.0])
    with pytest.raises(
        TypeError, match=r"^value must be a number or a tensor, found .*; write x.filled\(0.\).*$"
    ):
        x.filled(value)
    assert x.filled(x.mean()).tolist() == [1.0, 2.0, 3.0]
