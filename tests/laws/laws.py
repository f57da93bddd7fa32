"""The laws as functions of one entry of the database; each raises AssertionError and says which case broke it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import maskgrad as mg
from tests.laws.accumulation_oracle import accumulates
from tests.laws.any_type.comparison import assert_gradients, assert_same_bits, parts_of
from tests.laws.any_type.evaluation import attempt, cotangents_for, gradients
from tests.laws.any_type.operands import Call, Plan, fully_specified, plans_for
from tests.laws.any_type.operator_database import Entry, differentiable
from tests.laws.any_type.samples import Sample
from tests.laws.deletion_oracle import ESTIMATES
from tests.laws.effort import effort_for, effort_of, samples_of
from tests.laws.evaluation import Outcome, anomalies_raise, assert_result, plain_parts
from tests.laws.oracles import WRITES, expect
from tests.laws.status import answer

__all__ = [
    "check_identity", "check_identity_of_refused", "check_non_interference", "check_refusals",
    "check_spellings", "refused",
]  # fmt: skip

#: Families that only move values: not a bit may change.
MOVING = ("views", "indexing", "joins", "conversion")


def cases(entry: Entry) -> list[tuple[str, Call]]:
    """The calls on which an entry is tested: those with tensors that a record answers and does not refuse."""
    found = [
        (f"{entry.id}, sample {i}", Call.of(entry, sample)) for i, sample in enumerate(samples_of(entry))
    ]
    usable = [(what, call) for what, call in found if call.data and not refused(entry, call)]
    assert usable, f"{entry.id} ({entry.dtype}, {entry.form}): no sample is left to test it with"
    return usable


def only_moves(entry: Entry, call: Call) -> bool:
    """Whether not a bit of what the call is given may change."""
    return entry.operation.family in MOVING and not (entry.name in WRITES.split() and accumulates(call))


def refused(entry: Entry, call: Call) -> bool:
    """Whether the call has no meaning on incomplete data."""
    return isinstance(answer(entry, call), mg.UndefinedOnMaskedError)


def check_identity_of_refused(entry: Entry) -> None:
    """Law 1 for what is refused on incomplete data: the bits of PyTorch's function, in all results and gradients."""
    calls = [Call.of(entry, sample) for sample in samples_of(entry)]
    for call in [call for call in calls if call.data and refused(entry, call)]:
        plain, leaves = call.leaves(differentiable(entry)), call.leaves(differentiable(entry))
        args, kwargs = call.with_tensors(plain)
        torch.manual_seed(0)
        values = entry.reference(*args, **kwargs)
        args, kwargs = call.masked(leaves, fully_specified(call))
        torch.manual_seed(0)
        result = entry.function(*args, **kwargs)
        expected = [torch.as_tensor(part) for part in parts_of(values)]
        masks = [torch.ones(part.shape, dtype=torch.bool) for part in expected]
        plain_as_torchs = [mask if mask.ndim else None for mask in masks]
        assert_result(result, values, plain_as_torchs, entry.id, exact=True)
        cotangents = cotangents_for(expected, masks)
        ends = ((plain_parts(result), leaves), (expected, plain))
        found, right = (attempt(gradients, (*end, cotangents), {}) for end in ends)
        if isinstance(right, Exception):  # eigenvectors have a phase, which must not matter
            assert type(found) is type(right), f"{entry.id}: gradient: {found}"
            continue
        assert_same_bits(found, right, f"{entry.id}: gradient")


def check_identity(entry: Entry) -> None:
    """Law 1: on fully specified input the result is torch's, entry for entry, and so is the gradient.

    Where there was nothing to reduce, law 3 has the last word: the oracle's mask says unspecified.
    """
    for what, call in cases(entry):
        plan = fully_specified(call)
        plain, leaves = call.leaves(differentiable(entry)), call.leaves(differentiable(entry))
        args, kwargs = call.with_tensors(plain)
        values = entry.reference(*args, **kwargs)
        expected = expect(entry, call, plain, call.masks(plan))
        masks = expected.masks
        if entry.operation.family not in ("reductions", "contractions", "losses", "embeddings", "distances"):
            assert all(mask is None or mask.all() for mask in masks)
        args, kwargs = call.masked(leaves, plan)
        result = entry.function(*args, **kwargs)
        assert_result(result, values, masks, what, exact=only_moves(entry, call), amplified=entry.tolerant)
        for part, value, mask in zip(parts_of(result), parts_of(values), masks, strict=True):
            assert mask is None or part.requires_grad == value.requires_grad, (
                f"{what}: requires_grad is not {value.requires_grad}"
            )
        cotangents = cotangents_for(values, masks)
        found = gradients(plain_parts(result), leaves, cotangents)
        # an estimate of too few entries is torch's NaN, without torch's NaN for a gradient
        reference = parts_of(expected.values if entry.operation.name in ESTIMATES else values)
        if entry.operation.name in ESTIMATES:
            pairs = zip(cotangents, reference, strict=True)
            cotangents = [cotangent if part.requires_grad else None for cotangent, part in pairs]
        right = gradients(reference, plain, cotangents)
        assert_gradients(found, right, what, entry.tolerant)


def check_non_interference(entry: Entry) -> None:
    """Law 2: whatever lies under the mask, the specified results and all gradients are the same bits, and right."""
    for sample, call in cases(entry):
        for plan in plans_for(call, effort_of(entry)):
            check_plan(entry, call, plan, f"{sample}, {plan.name}")


def check_plan(entry: Entry, call: Call, plan: Plan, what: str) -> None:
    """One sample under one choice of masks: the oracle's mask, values, gradients; the same bits for all garbage."""
    clean = call.leaves(differentiable(entry))
    expected = expect(entry, call, clean, call.masks(plan))
    cotangents = cotangents_for(expected.values, expected.masks)
    right = gradients(parts_of(expected.values), clean, cotangents)
    quiet = not any(grad.isnan().any() for grad in right if grad is not None)
    first: Outcome | None = None
    for garbage in effort_of(entry).garbage:
        here = f"{what}, {garbage} under the mask"
        with anomalies_raise(quiet):
            outcome = run(entry.function, call, plan, garbage, differentiable(entry), cotangents)
        assert_result(
            outcome.result,
            expected.values,
            expected.masks,
            here,
            exact=only_moves(entry, call),
            amplified=entry.tolerant,
        )
        for leaf_mask, grad in zip(call.masks(plan), outcome.grads, strict=True):
            if leaf_mask is not None and grad is not None:
                assert not grad[~leaf_mask].count_nonzero(), f"{here}: an unspecified entry has a gradient"
        if first is None:
            first = outcome
            assert_gradients(outcome.grads, right, here, entry.tolerant)
        assert_same_bits(outcome.plain, first.plain, f"{here}: result")
        assert_same_bits(outcome.grads, first.grads, f"{here}: gradient of operand")


def run(
    function: Callable[..., Any], call: Call, plan: Plan, garbage: str, differentiable: bool, cotangents: Any
) -> Outcome:
    leaves = call.leaves(differentiable, plan, garbage)
    args, kwargs = call.masked(leaves, plan)
    result = function(*args, **kwargs)
    plain = plain_parts(result)
    return Outcome(result, plain, gradients(plain, leaves, cotangents))


def check_spellings(entry: Entry) -> None:
    """Methods and operators say the same as the function."""
    for sample, call in cases(entry):
        for plan in (fully_specified(call), *plans_for(call, effort_for(own=True))):
            for kind, spelling in entry.other_spellings.items():
                check_same(entry, call, plan, spelling, f"{sample}, {plan.name}, {kind}")


def check_same(entry: Entry, call: Call, plan: Plan, spelling: Callable[..., Any], what: str) -> None:
    """The spelling gives what the function gives, or is refused where torch refuses it."""
    leaves = call.leaves(False)
    args, kwargs = call.with_tensors(leaves)
    dense = attempt(spelling, args, kwargs)
    args, kwargs = call.masked(call.leaves(False, plan, "nan"), plan)
    if isinstance(dense, Exception):
        assert isinstance(attempt(spelling, args, kwargs), Exception), (
            f"{what}: torch says {dense}; we accept it"
        )
        return
    usual, result = entry.function(*args, **kwargs), spelling(*args, **kwargs)
    assert_same_parts(result, usual, what)


def assert_same_parts(result: Any, usual: Any, what: str) -> None:
    assert type(result) is type(usual), f"{what}: the result is a {type(result).__name__}"
    if not isinstance(parts_of(usual)[0], mg.MaskedTensor):  # a number, a bool, plain.to(masked)
        found, expected = ([torch.as_tensor(part) for part in parts_of(r)] for r in (result, usual))
        assert_same_bits(found, expected, f"{what}: result")
        return
    masks = [part.mask for part in parts_of(result)]
    assert_same_bits(masks, [part.mask for part in parts_of(usual)], f"{what}: mask")
    assert_same_bits(plain_parts(result), plain_parts(usual), f"{what}: result")


def check_refusals(entry: Entry) -> None:
    """What torch rejects on complete data is rejected on fully specified data."""
    if entry.info.error_inputs_func is None:
        return
    for i, error in enumerate(entry.info.error_inputs_func(entry.info, "cpu")):
        drawn = error.sample_input
        call = Call.of(entry, Sample((drawn.input, *drawn.args), dict(drawn.kwargs)))
        if (
            not call.data
            or "out" in call.with_tensors(call.tensors)[1]
            or any(t.layout != torch.strided for t in call.tensors)
        ):
            continue
        args, kwargs = call.with_tensors(call.tensors)
        if not isinstance(attempt(entry.function, args, kwargs), Exception):
            continue  # torch accepts it after all (a warning, or an error of the device only)
        args, kwargs = call.masked(call.tensors, fully_specified(call))
        found = attempt(entry.function, args, kwargs)
        assert isinstance(found, Exception), (
            f"{entry.id}, error input {i}: torch says {error.error_regex!r}; we accept it"
        )
