"""Law 2 on a GPU: the masks, values and gradients that the oracles find on the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tests.laws.any_type.comparison import assert_close, assert_gradients, parts_of
from tests.laws.any_type.evaluation import attempt, cotangents_for, gradients
from tests.laws.any_type.operands import Call, Plan, plans_for
from tests.laws.any_type.operator_database import Entry, differentiable
from tests.laws.comparison import assert_result
from tests.laws.effort import effort_of
from tests.laws.evaluation import plain_parts
from tests.laws.laws import cases
from tests.laws.oracles import expect
from tests.laws.status import checked_entries

CHECKED = checked_entries()


def there(tensors: Sequence[Tensor | None], device: str) -> list[Tensor | None]:
    return [None if tensor is None else tensor.to(device) for tensor in tensors]


def moved(call: Call, device: str) -> Call:
    """The same call of tensors on the device."""
    return dataclasses.replace(call, tensors=there(call.tensors, device))


def here(result: Any) -> Any:
    return tree_map(lambda part: part.cpu() if isinstance(part, Tensor) else part, result)


def check_on(device: str, entry: Entry) -> None:
    """The first kind of garbage suffices: whether others give the same bits is no question of the device."""
    for sample, call in cases(entry):
        for plan in plans_for(call, effort_of(entry)):
            check_plan(device, entry, call, plan, f"{sample}, {plan.name}, on {device}")


def check_plan(device: str, entry: Entry, call: Call, plan: Plan, what: str) -> None:
    remote = moved(call, device)
    clean = call.leaves(differentiable(entry))
    expected = expect(entry, call, clean, call.masks(plan))
    cotangents = cotangents_for(expected.values, expected.masks)
    plain = plain_outcome(entry, remote, cotangents)
    if isinstance(plain, Exception):
        return  # PyTorch has no such operator there
    leaves = [
        leaf.detach().to(device).requires_grad_(leaf.requires_grad)
        for leaf in call.leaves(differentiable(entry), plan, "nan")
    ]
    args, kwargs = remote.masked(leaves, Plan(plan.name, tuple(there(plan.masks, device))))
    result = entry.function(*args, **kwargs)
    if not agree(here(plain[0]), plain_outcome(entry, call, cotangents)[0]):  # other numbers are drawn there
        for part, mask in zip(parts_of(here(result)), expected.masks, strict=True):
            assert mask is None or torch.equal(part.mask, mask), what
        return
    assert_result(here(result), expected.values, expected.masks, what, amplified=True)
    right = gradients(parts_of(expected.values), clean, cotangents)
    found = here(gradients(plain_parts(result), leaves, beside(plain_parts(result), cotangents)))
    assert_gradients(found, right, what, amplified=True)
    for mask, grad in zip(call.masks(plan), found, strict=True):
        if mask is not None and grad is not None:
            assert not grad[~mask].count_nonzero(), f"{what}: an unspecified entry has a gradient"


def beside(parts: Sequence[Tensor], cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The cotangents on the devices of the results: ``to`` leaves them elsewhere."""
    pairs = zip(parts, cotangents, strict=True)
    return [None if weight is None else weight.to(part.device) for part, weight in pairs]


def plain_outcome(entry: Entry, call: Call, cotangents: Sequence[Tensor | None]) -> Any:
    """Results and gradients of PyTorch's own operator on what is under the mask, too; or its error."""

    def run() -> tuple[list[Any], list[Tensor | None]]:
        leaves = call.leaves(differentiable(entry))
        args, kwargs = call.with_tensors(leaves)
        parts = [torch.as_tensor(part) for part in parts_of(entry.reference(*args, **kwargs))]
        weights = [
            weight if part.requires_grad else None
            for part, weight in zip(parts, beside(parts, cotangents), strict=True)
        ]
        return parts, gradients(parts, leaves, weights)

    return attempt(run, (), {})


def agree(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    try:
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, "", amplified=True)
    except AssertionError:
        return False
    return True


@pytest.mark.gpu
@pytest.mark.parametrize("entry", CHECKED, ids=lambda entry: entry.id)
def test_results_on_a_gpu_are_those_of_the_cpu(entry: Entry) -> None:
    with torch.backends.cudnn.flags(allow_tf32=False, deterministic=True):
        check_on("cuda", entry)


@pytest.mark.parametrize("entry", CHECKED[::50], ids=lambda entry: entry.id)
def test_the_comparison_itself(entry: Entry) -> None:
    """Where there is no GPU, of the CPU with itself."""
    check_on("cpu", entry)
