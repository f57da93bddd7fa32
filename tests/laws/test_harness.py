"""The laws must be able to fail: records that are wrong in a known way, and the check that has to notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from maskgrad.masked_tensor import dispatch
from maskgrad.semantics.entries import Entries, fill, intersection, specified
from tests.laws.any_type.operator_database import Entry, entry_named
from tests.laws.laws import check_identity, check_non_interference, check_spellings
from tests.laws.second_order import check_derivatives

Body = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def hides_the_anomaly(function: Any, args: Any, kwargs: Any) -> Entries:
    """A NaN arises backward and is removed: right gradients, but anomaly mode speaks."""
    mask = intersection(args)
    leaves = [torch.where(a.mask, a.values, torch.where(a.mask, a.values, torch.nan)) for a in args]
    return specified(torch.where(mask, function(*leaves, **kwargs), 0), mask)


def specifies_nothing(function: Any, args: Any, kwargs: Any) -> Entries:
    result = function(*[fill(a, intersection(args), 1) for a in args], **kwargs)
    return Entries(result, torch.zeros(result.shape, dtype=torch.bool))


def cuts_the_graph(function: Any, args: Any, kwargs: Any) -> Entries:
    """The first derivative is right, and a constant."""
    (x,) = args
    value = torch.where(x.mask, x.values, 1)
    result = function(value.detach())
    slope = torch.autograd.functional.jvp(function, value.detach(), torch.ones_like(value))[1]
    return Entries(result + slope * (value - value.detach()), x.mask)


#: What planted faults do not tell of each law (tests/planted_faults).
BREACHES: tuple[tuple[str, Body, Callable[[Entry], object]], ...] = (
    ("exp", hides_the_anomaly, check_non_interference),
    ("exp", specifies_nothing, check_identity),
    ("mul", specifies_nothing, check_spellings),
    ("exp", cuts_the_graph, check_derivatives),
)


@pytest.mark.parametrize(
    ("name", "body", "check"), BREACHES, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_wrong_record_is_reported(
    name: str, body: Body, check: Callable[[Entry], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = entry_named(name)
    check(entry)
    record = dispatch.binding_of(entry.info.op)
    wrong = type("Wrong", (), {**vars(record.operation), "body": staticmethod(body)})
    monkeypatch.setitem(dispatch.BY_FUNCTION, entry.info.op, record._replace(operation=wrong))
    with pytest.raises((AssertionError, RuntimeError)):
        check(entry)
