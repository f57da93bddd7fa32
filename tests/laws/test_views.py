"""The laws through views: what is written to a view is in the tensor it is a view of, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.laws.any_type.comparison import assert_same_bits
from tests.laws.any_type.evaluation import attempt
from tests.laws.any_type.operands import Call, Plan, fully_specified, plans_for
from tests.laws.any_type.operator_database import Entry
from tests.laws.effort import effort_for
from tests.laws.laws import assert_same_parts, cases
from tests.laws.status import checked_entries

#: Operations whose in-place form is not tested, each with its reason.
RESIZING = {"addbmm": "torch's addbmm_ resizes its target, against torch's own rule"}
#: Entries of which no sample can be written in place, each with the reason.
NEVER_WRITTEN = {"float_power": "its results are float64, which torch does not write into float32"}
WRITING = [entry for entry in checked_entries() if entry.in_place_spellings and entry.id not in RESIZING]


@pytest.mark.every
@pytest.mark.parametrize("entry", WRITING, ids=lambda entry: entry.id)
def test_writes_reach_the_tensor_that_a_view_is_of_and_nothing_else(entry: Entry) -> None:
    tried = 0
    for sample, call in cases(entry):
        plans = (
            [fully_specified(call), *plans_for(call, effort_for(own=True))] if call.first_is_tensor else []
        )
        for number, plan in enumerate(plans):
            for kind, spelling in entry.in_place_spellings.items():
                for place in (itself, slice_turned)[: 2 if number < 3 else 1]:
                    what = f"{sample}, {plan.name}, {kind}, {place.__name__}"
                    tried += check_write(entry, call, plan, spelling, place, what)
    assert tried or entry.id in NEVER_WRITTEN, f"{entry.id}: nothing was written"


def itself(base: Any) -> Any:
    return base


def slice_turned(base: Any) -> Any:
    """The second of three slices, its dimensions in the opposite order."""
    return base[1].permute(tuple(reversed(range(base.ndim - 1))))


def check_plain_target(spelling: Callable[..., Any], args: Any, kwargs: Any, what: str) -> None:
    """A plain tensor cannot take masked entries, and it stays as it was.

    No TypeError: after that of ``x += masked`` Python would try ``x = x + masked``.
    """
    before = args[0].clone()
    result = attempt(spelling, args, kwargs)
    assert isinstance(result, RuntimeError), f"{what}: a plain tensor took masked entries"
    assert_same_bits([args[0]], [before], f"{what}: plain operand")


def check_write(entry: Entry, call: Call, plan: Plan, spelling: Any, place: Any, what: str) -> bool:
    """Whether something was written; nothing is, where torch refuses the plain call or the target is plain."""
    args, kwargs = call.masked(call.leaves(False, plan, "nan"), plan)
    if not isinstance(args[0], mg.MaskedTensor):
        check_plain_target(spelling, args, kwargs, what)
        return False
    shape = args[0].shape if place is itself else (3, *reversed(args[0].shape))
    values = torch.empty(shape, dtype=args[0].dtype).fill_(1)
    mask = torch.ones(values.shape, dtype=torch.bool)
    place(values).copy_(args[0]._values)
    place(mask).copy_(args[0].mask)

    plain, plain_kwargs = call.with_tensors(call.leaves(False))
    dense = attempt(spelling, (place(values.clone()), *plain[1:]), plain_kwargs)
    base = mg.masked(values, mask)
    before = values.clone(), mask.clone()
    target = place(base)
    if isinstance(dense, Exception):
        assert isinstance(attempt(spelling, (target, *args[1:]), kwargs), Exception), (
            f"{what}: torch says {dense}; we accept it"
        )
        assert_same_bits([values, mask], before, f"{what}: after a refusal")
        return False
    copy = mg.masked(values.clone(), mask.clone())  # strides decide about the last bit, and what is drawn
    usual = entry.function(place(copy), *args[1:], **kwargs).to(dense.dtype)
    result = spelling(target, *args[1:], **kwargs)
    assert result is target, f"{what}: the result is not the tensor it was written to"
    if entry.operation.family == "random":  # memory in another order gets the numbers in another order
        assert torch.equal(result.mask, usual.mask), f"{what}: mask"
        usual = result.clone()
    assert_same_parts(result, usual, what)
    if entry.operation.family == "views":  # the name has another shape, the memory stays
        assert_same_bits([values], before[:1], f"{what}: memory")
        return True
    assert_same_parts(place(base), usual, f"{what}: seen from the base")
    kept = ~usual.mask
    assert_same_bits([place(values)[kept]], [place(before[0])[kept]], f"{what}: under the mask")
    if place is slice_turned:
        assert_same_bits([values[::2], base.mask[::2]], [b[::2] for b in before], f"{what}: beside the view")
    return True
