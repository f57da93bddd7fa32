"""The laws under ``is_grads_batched``: several cotangents at once give what each gives alone."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.evaluation import attempt, cotangents_for, gradients
from tests.laws.any_type.operands import plans_for
from tests.laws.any_type.operator_database import Entry, differentiable
from tests.laws.effort import effort_of
from tests.laws.evaluation import plain_parts
from tests.laws.laws import cases
from tests.laws.status import checked_entries

ENTRIES = [entry for entry in checked_entries() if differentiable(entry)]
#: Entries of which PyTorch's own derivative cannot be batched.
NEVER_BATCHED = {"native_group_norm": "its backward pass has no batching rule"}
SCALES = (1, -2)


def several(
    parts: Sequence[Tensor], leaves: Sequence[Tensor], directions: Sequence[Tensor | None]
) -> list[Tensor]:
    """For each leaf that takes part, its gradients for all multiples of the directions."""
    stacked = [None if one is None else torch.stack([scale * one for scale in SCALES]) for one in directions]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vmap has no rule for some operators, and says that it loops
        found = gradients(parts, leaves, stacked, retain_graph=True, is_grads_batched=True)
    return [grad for grad in found if grad is not None]


@pytest.mark.every
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_several_cotangents_at_once(entry: Entry) -> None:
    compared = 0
    for sample, call in itertools.islice(cases(entry), 4):
        plain = call.leaves(True)
        args, kwargs = call.with_tensors(plain)
        reference = parts_of(entry.reference(*args, **kwargs))
        everywhere = [torch.ones(part.shape, dtype=torch.bool) for part in reference]
        theirs = attempt(several, (reference, plain, cotangents_for(reference, everywhere)), {})
        if isinstance(theirs, Exception):
            continue  # PyTorch has no rule for this derivative
        (plan,) = itertools.islice(plans_for(call, effort_of(entry)), 1)
        for garbage in effort_of(entry).garbage[:2]:
            what = f"{sample}, {plan.name}, {garbage} under the mask"
            leaves = call.leaves(True, plan, garbage)
            args, kwargs = call.masked(leaves, plan)
            result = parts_of(entry.function(*args, **kwargs))
            parts = plain_parts(result)
            masks = [getattr(part, "mask", torch.ones(part.shape, dtype=torch.bool)) for part in result]
            directions = cotangents_for(parts, masks)
            found = attempt(several, (parts, leaves, directions), {})
            assert not isinstance(found, Exception), f"{what}: {found}"
            for place, scale in enumerate(SCALES if found else ()):
                compared += 1
                one = [None if direction is None else direction * scale for direction in directions]
                alone = [
                    grad for grad in gradients(parts, leaves, one, retain_graph=True) if grad is not None
                ]
                torch.testing.assert_close(
                    [grads[place] for grads in found],
                    alone,
                    equal_nan=True,
                    msg=lambda m, what=what: f"{what}: {m}",
                )
    assert compared or entry.id in NEVER_BATCHED, f"{entry.id}: nothing was compared"
