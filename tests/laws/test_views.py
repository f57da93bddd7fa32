"""The laws through views: what is written to a view is in the tensor it is a view of, and nothing else is touched."""

from __future__ import annotations

import itertools
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
from tests.laws.laws import RESIZING, assert_same_parts, cases
from tests.laws.status import checked_entries

WRITING = [entry for entry in checked_entries() if entry.in_place_spellings and entry.id not in RESIZING]


@pytest.mark.every
@pytest.mark.parametrize("entry", WRITING, ids=lambda entry: entry.id)
def test_views_write_where_the_entries_lie(entry: Entry) -> None:
    tried = 0
    for sample, call in cases(entry):
        if not call.first_is_tensor:
            continue
        for plan in itertools.islice((fully_specified(call), *plans_for(call, effort_for(own=True))), 3):
            for kind, spelling in entry.in_place_spellings.items():
                tried += check_view(entry, call, plan, spelling, f"{sample}, {plan.name}, {kind}")
    assert tried or entry.id in NEVER_WRITTEN, f"{entry.id}: no view was written to"


#: Entries of which no sample can be written in place, each with the reason.
NEVER_WRITTEN = {"float_power": "its results are float64, which torch does not write into float32"}


def lying_in(base: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The second of three slices, its dimensions in the opposite order."""
    order = tuple(reversed(range(len(shape))))
    return base[1].permute(order)


def check_view(entry: Entry, call: Call, plan: Plan, spelling: Callable[..., Any], what: str) -> bool:
    """Whether something was written; nothing is, where torch refuses the plain call or the target is plain."""
    args, kwargs = call.masked(call.leaves(False, plan, "nan"), plan)
    if not isinstance(args[0], mg.MaskedTensor):
        return False
    shape = args[0].shape
    values = torch.empty((3, *reversed(shape)), dtype=args[0].dtype).fill_(1)
    mask = torch.ones(values.shape, dtype=torch.bool)
    lying_in(values, shape).copy_(args[0]._values)
    lying_in(mask, shape).copy_(args[0].mask)

    plain, plain_kwargs = call.with_tensors(call.leaves(False))
    place = values.clone()
    dense = attempt(spelling, (lying_in(place, shape), *plain[1:]), plain_kwargs)
    base = mg.masked(values, mask)
    before = values.clone(), mask.clone()
    target = lying_in(base, shape)  # type: ignore[arg-type]
    if isinstance(dense, Exception):
        assert isinstance(attempt(spelling, (target, *args[1:]), kwargs), Exception), (
            f"{what}: torch says {dense}; we accept it"
        )
        assert_same_bits([values, mask], before, f"{what}: after a refusal")
        return False
    copy: Any = mg.masked(
        values.clone(), mask.clone()
    )  # strides decide about the last bit, and what is drawn
    usual = entry.function(lying_in(copy, shape), *args[1:], **kwargs).to(dense.dtype)
    result = spelling(target, *args[1:], **kwargs)
    assert result is target, f"{what}: the result is not the tensor it was written to"
    if entry.operation.family == "random":  # memory in another order gets the numbers in another order
        assert torch.equal(result.mask, usual.mask), f"{what}: mask"
        usual = result.clone()
    assert_same_parts(result, usual, what)
    if entry.operation.family == "views":  # the name has another shape, the memory stays
        assert_same_bits([values, base.mask], before, f"{what}: memory")
        return True
    seen = lying_in(base, shape)  # type: ignore[arg-type]
    assert_same_parts(seen, usual, f"{what}: seen from the base")
    written = lying_in(values, shape)
    kept = ~usual.mask
    assert_same_bits([written[kept]], [lying_in(before[0], shape)[kept]], f"{what}: under the mask")
    assert_same_bits([values[::2], base.mask[::2]], [b[::2] for b in before], f"{what}: beside the view")
    return True
