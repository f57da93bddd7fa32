"""The laws on a GPU: the masks, values and gradients that the other laws find right on the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.laws.any_type.comparison import assert_gradients, assert_same_bits, parts_of
from tests.laws.any_type.evaluation import attempt, cotangents_for, gradients
from tests.laws.any_type.operands import Call, Plan, plans_for
from tests.laws.any_type.operator_database import Entry, differentiable
from tests.laws.effort import effort_of
from tests.laws.evaluation import plain_parts
from tests.laws.laws import cases
from tests.laws.status import checked_entries

CHECKED = checked_entries()


class Outcome(NamedTuple):
    """Results with zeros where unspecified, and their masks; the gradients of the operands; all on the CPU."""

    values: list[Tensor]
    masks: list[Tensor]
    grads: list[Tensor | None]


def on(device: str, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [None if tensor is None else tensor.to(device) for tensor in tensors]


def outcome(entry: Entry, call: Call, device: str, plan: Plan | None = None) -> Outcome:
    """Of a call there, with NaN under the masks; without a plan, of PyTorch's own function on complete data."""
    leaves = [
        leaf.detach().to(device).requires_grad_(leaf.requires_grad)
        for leaf in call.leaves(differentiable(entry), plan, "nan")
    ]
    remote = dataclasses.replace(call, tensors=on(device, call.tensors))
    if plan is None:
        args, kwargs = remote.with_tensors(leaves)
    else:
        args, kwargs = remote.masked(leaves, Plan(plan.name, tuple(on(device, plan.masks))))
    results = parts_of((entry.reference if plan is None else entry.function)(*args, **kwargs))
    parts = plain_parts(results)
    masks = [
        getattr(one, "mask", torch.ones(part.shape).bool()) for one, part in zip(results, parts, strict=True)
    ]
    values, masks = on("cpu", parts), on("cpu", masks)
    # the results are where the function leaves them: ``to`` moves them elsewhere
    weights = [
        None if weight is None else weight.to(part.device)
        for weight, part in zip(cotangents_for(values, masks), parts, strict=True)
    ]
    return Outcome(values, masks, on("cpu", gradients(parts, leaves, weights)))


def check_on(device: str, entry: Entry) -> None:
    for sample, call in cases(entry):
        there = attempt(outcome, (entry, call, device), {})
        if isinstance(there, Exception):
            continue  # PyTorch has no such operator there
        same = (
            attempt(assert_gradients, (there.values, outcome(entry, call, "cpu").values, "", True), {})
            is None
        )  # no other numbers are drawn there
        for plan in plans_for(call, effort_of(entry)):
            what = f"{sample}, {plan.name}, on {device}"
            found, expected = (outcome(entry, call, place, plan) for place in (device, "cpu"))
            assert_same_bits(found.masks, expected.masks, f"{what}: mask")
            if same:
                assert_gradients(found.values, expected.values, f"{what}: values", amplified=True)
                assert_gradients(found.grads, expected.grads, what, amplified=True)


@pytest.mark.gpu
@pytest.mark.parametrize("entry", CHECKED, ids=lambda entry: entry.id)
def test_results_on_a_gpu_are_those_of_the_cpu(entry: Entry) -> None:
    with torch.backends.cudnn.flags(allow_tf32=False, deterministic=True):
        check_on("cuda", entry)


def test_the_comparison_itself() -> None:
    """Where there is no GPU, of the CPU with itself."""
    for entry in CHECKED[::50]:
        check_on("cpu", entry)
