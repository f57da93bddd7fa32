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


def multiplies_by_the_mask(function: Any, args: Any, kwargs: Any) -> Entries:
    """0 * NaN is NaN."""
    mask = intersection(args)
    values = [a.values * a.mask if isinstance(a, Entries) else a for a in args]
    return specified(function(*values, **kwargs), mask)


def selects_afterwards(function: Any, args: Any, kwargs: Any) -> Entries:
    """Right forward; backward the NaN is made and multiplied by zero."""
    mask = intersection(args)
    result = function(*[a.values if isinstance(a, Entries) else a for a in args], **kwargs)
    return specified(torch.where(mask, result, 0), mask)


def hides_the_anomaly(function: Any, args: Any, kwargs: Any) -> Entries:
    """A NaN arises backward and is removed: right gradients, but anomaly mode speaks."""
    mask = intersection(args)
    leaves = [torch.where(a.mask, a.values, torch.where(a.mask, a.values, torch.nan)) for a in args]
    result = function(*leaves, **kwargs)
    return specified(torch.where(mask, result, 0), mask)


def forgets_an_operand(function: Any, args: Any, kwargs: Any) -> Entries:
    mask = intersection(args)
    first = next(a for a in args if isinstance(a, Entries))
    result = function(*[fill(a, mask, 1) for a in args], **kwargs)
    return specified(result, torch.broadcast_to(first.mask, result.shape))


def specifies_everything(function: Any, args: Any, kwargs: Any) -> Entries:
    result = function(*[fill(a, intersection(args), 1) for a in args], **kwargs)
    return Entries(result, torch.ones(result.shape, dtype=torch.bool))


def specifies_nothing(function: Any, args: Any, kwargs: Any) -> Entries:
    result = function(*[fill(a, intersection(args), 1) for a in args], **kwargs)
    return Entries(result, torch.zeros(result.shape, dtype=torch.bool))


def divides_by_the_length(function: Any, args: Any, kwargs: Any) -> Entries:
    """A mean in which unspecified entries count."""
    x, *rest = args
    result = function(torch.where(x.mask, x.values, 0), *rest, **kwargs)
    mask = torch.sum(x.mask, *rest, **{k: v for k, v in kwargs.items() if k != "dtype"}) > 0
    return Entries(result, mask)


def cuts_the_graph(function: Any, args: Any, kwargs: Any) -> Entries:
    """The first derivative is right, and a constant."""
    (x,) = args
    value = torch.where(x.mask, x.values, 1)
    result = function(value.detach())
    slope = torch.autograd.functional.jvp(function, value.detach(), torch.ones_like(value))[1]
    return Entries(result + slope * (value - value.detach()), x.mask)


def moves_values_only(function: Any, args: Any, kwargs: Any) -> Entries:
    x, *rest = args
    values = function(x.values, *rest, **kwargs)
    return Entries(values, x.mask.reshape(-1)[: values.numel()].reshape(values.shape))


BREACHES: tuple[tuple[str, Body, Callable[[Entry], object]], ...] = (
    ("mul", multiplies_by_the_mask, check_non_interference),
    ("sqrt", selects_afterwards, check_non_interference),
    ("exp", hides_the_anomaly, check_non_interference),
    ("add", forgets_an_operand, check_non_interference),
    ("exp", specifies_everything, check_non_interference),
    ("exp", specifies_nothing, check_identity),
    ("exp", specifies_nothing, check_non_interference),
    ("mean", divides_by_the_length, check_non_interference),
    ("exp", cuts_the_graph, check_derivatives),
    ("flip", moves_values_only, check_non_interference),
    ("mul", specifies_everything, check_spellings),
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
