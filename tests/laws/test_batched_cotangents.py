"""The laws under ``is_grads_batched``: several cotangents at once give what each gives alone."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import Tensor

from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.evaluation import attempt, cotangents_for, dense
from tests.laws.any_type.operands import plans_for
from tests.laws.any_type.operator_database import Entry, differentiable
from tests.laws.effort import effort_of
from tests.laws.evaluation import plain_parts
from tests.laws.laws import cases
from tests.laws.status import checked_entries

ENTRIES = [entry for entry in checked_entries() if differentiable(entry)]


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
        for plan in itertools.islice(plans_for(call, effort_of(entry)), 1):
            for garbage in effort_of(entry).garbage[:2]:
                what = f"{sample}, {plan.name}, {garbage} under the mask"
                leaves = call.leaves(True, plan, garbage)
                args, kwargs = call.masked(leaves, plan)
                result = parts_of(entry.function(*args, **kwargs))
                parts = plain_parts(result)
                masks = [getattr(part, "mask", torch.ones(part.shape, dtype=torch.bool)) for part in result]
                cotangents = cotangents_for(parts, masks)
                found = attempt(several, (parts, leaves, cotangents), {})
                if isinstance(theirs, Exception):
                    continue  # PyTorch has no rule for this derivative
                if isinstance(found, Exception):
                    raise AssertionError(f"{what}: {found}") from found
                for scale, one in zip((1, -2), zip(*found, strict=True), strict=True) if found else ():
                    compared += 1
                    alone = single(parts, leaves, [None if c is None else c * scale for c in cotangents])
                    for batched, expected in zip(one, alone, strict=True):
                        torch.testing.assert_close(
                            batched, expected, equal_nan=True, msg=lambda m, what=what: f"{what}: {m}"
                        )
    assert compared or entry.id in NEVER_BATCHED, f"{entry.id}: nothing was compared"


#: Entries of which PyTorch's own derivative cannot be batched.
NEVER_BATCHED = {"native_group_norm": "its backward pass has no batching rule"}


def several(parts: list[Tensor], leaves: list[Tensor], cotangents: list[Tensor | None]) -> list[Tensor]:
    """For each leaf that takes part, its gradients for the cotangents and for -2 times these."""
    pairs = [(p, torch.stack([c, -2 * c])) for p, c in zip(parts, cotangents, strict=True) if c is not None]
    return _gradients(pairs, leaves, True)


def single(parts: list[Tensor], leaves: list[Tensor], cotangents: list[Tensor | None]) -> list[Tensor]:
    """For each leaf that takes part, its gradient."""
    return _gradients(
        [(p, c) for p, c in zip(parts, cotangents, strict=True) if c is not None], leaves, False
    )


def _gradients(pairs: list[tuple[Tensor, Tensor]], leaves: list[Tensor], batched: bool) -> list[Tensor]:
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not pairs or not wanted:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vmap has no rule for some operators, and says that it loops
        found = torch.autograd.grad(
            [p for p, _ in pairs],
            wanted,
            [c for _, c in pairs],
            True,
            allow_unused=True,
            is_grads_batched=batched,
        )
    return [dense(g) for g in found if g is not None]  # type: ignore[misc]
