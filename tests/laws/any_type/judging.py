"""Testing one entry of the operator database, for any type of masked tensors, with the laws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from tests.laws.any_type.adapter import Adapter
from tests.laws.any_type.comparison import assert_close, assert_gradients, assert_same_bits, parts_of
from tests.laws.any_type.evaluation import attempt, cotangents_for, gradients
from tests.laws.any_type.operands import Call, Plan, fully_specified, plans_for
from tests.laws.any_type.operator_database import Entry, differentiable, samples_of
from tests.laws.any_type.samples import Effort
from tests.laws.deletion_samples import empty_slices, samples_by_deletion
from tests.laws.oracles import expect

__all__ = ["Status", "Verdict", "calls_of", "judge"]

#: Operations for which PyTorch returns 0 for an empty sum, although no operand is empty.
EMPTY_BAGS = ("nn.functional.embedding_bag",)

#: Verdict of an entry: it obeys; it obeys, but raises with gradients; every call raises; or a
#: successful call breaks a law.
Status = Literal["supported", "values only", "refused", "broken"]


class Verdict(NamedTuple):
    """Verdict of the laws for one entry.

    Attributes:
        status: one of :data:`Status`.
        law: the law that is broken.
        case: the call that breaks it, and the difference.
    """

    status: Status
    law: str = ""
    case: str = ""


class _MismatchError(AssertionError):
    """A result whose mask does not fit its values."""


class Answer(NamedTuple):
    """Results of a call with a type: values with zeros where unspecified, masks, and gradients."""

    plain: list[Tensor]
    masks: list[Tensor]
    grads: list[Tensor | None]


def calls_of(entry: Entry, effort: Effort) -> list[tuple[str, Call]]:
    """The calls to test for an entry, each with its name."""
    calls = [Call.of(entry, sample) for sample in samples_of(entry, effort)]
    return [(f"sample {i}", call) for i, call in enumerate(calls) if call.data]


def judge(entry: Entry, calls: Sequence[tuple[str, Call]], adapter: Adapter, effort: Effort) -> Verdict:
    """Apply the laws until one of them is broken; without gradients if every call with them is refused."""
    with_gradients = differentiable(entry)
    verdict = _Judged(entry, adapter, with_gradients).verdict(calls, effort)
    if verdict.status == "refused" and with_gradients:
        verdict = _Judged(entry, adapter, False).verdict(calls, effort)
        return verdict._replace(status="values only") if verdict.status == "supported" else verdict
    return verdict


def _in_short(error: AssertionError) -> str:
    """The first lines of a message: what differs, and by how much."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3])


class _Judged:
    """One entry, tested for one type."""

    def __init__(self, entry: Entry, adapter: Adapter, differentiable: bool) -> None:
        self.entry, self.adapter, self.differentiable = entry, adapter, differentiable
        self.kind = type(adapter.make(torch.zeros(1), torch.ones(1, dtype=torch.bool)))

    def verdict(self, calls: Sequence[tuple[str, Call]], effort: Effort) -> Verdict:
        """Apply the laws in turn."""
        law = what = ""
        answered = False
        try:
            for name, call in calls:
                law, what = "identity", name
                if not self.identity(call):
                    continue
                law = "non-interference"
                for plan in plans_for(call, effort):
                    what = f"{name}, {plan.name}"
                    gaps = any(mask is not None and not mask.all() for mask in plan.masks)
                    answered |= self.non_interference(call, plan, effort.garbage) and gaps
            law = "deletion"
            for name, sample in samples_by_deletion(self.entry, ("ordinary",)) if answered else ():
                what = name
                self.deletion(Call.of(self.entry, sample))
        except AssertionError as error:
            return Verdict("broken", law, f"{what}: {_in_short(error)}")
        return Verdict("supported" if answered else "refused")

    def identity(self, call: Call) -> bool:
        """Law 1: on fully specified data results are PyTorch's; False if the call is refused."""
        found = self.answer(call, fully_specified(call), None)
        if isinstance(found, Exception):
            return False
        plain = call.leaves(self.differentiable)
        args, kwargs = call.with_tensors(plain)
        reference = attempt(self.entry.reference, args, kwargs)
        if isinstance(reference, Exception):  # PyTorch has no gradient of one of the operands
            return False
        expected = [torch.as_tensor(part) for part in parts_of(reference)]
        assert len(found.plain) == len(expected), f"{len(found.plain)} results instead of {len(expected)}"
        for value, mask, right in zip(found.plain, found.masks, expected, strict=True):
            assert value.dtype == right.dtype, f"{value.dtype} instead of {right.dtype}"
            assert value.shape == right.shape, f"shape {tuple(value.shape)} instead of {tuple(right.shape)}"
            lost = ~mask & ~self.of_nothing(call, right)
            assert not lost.any(), f"{int(lost.sum())} results of specified data are unspecified"
            assert_close(value[mask], right.detach()[mask], "values", amplified=self.entry.tolerant)
        wanted = gradients(expected, plain, cotangents_for(expected, found.masks))
        assert_gradients(found.grads, wanted, "identity", self.entry.tolerant)
        return True

    def non_interference(self, call: Call, plan: Plan, kinds: Sequence[str]) -> bool:
        """Law 2: garbage under the masks changes no mask, specified value or gradient; False if refused."""
        first, *others = [(kind, self.answer(call, plan, kind)) for kind in kinds]
        for kind, found in (first, *others):
            here = f"{kind} under the mask"
            if isinstance(found, Exception) or isinstance(first[1], Exception):
                assert type(found) is type(first[1]), f"{here}: answered or refused, unlike {first[0]}"
                continue
            for mask, grad in zip(call.masks(plan), found.grads, strict=True):
                if mask is not None and grad is not None:
                    assert not grad[~mask].count_nonzero(), f"{here}: an unspecified entry has a gradient"
            assert len(found.masks) == len(first[1].masks), f"{here}: {len(found.masks)} results"
            assert_same_bits(found.masks, first[1].masks, f"{here}: mask")
            assert_same_bits(found.plain, first[1].plain, f"{here}: result")
            assert_same_bits(found.grads, first[1].grads, f"{here}: gradient of operand")
        return not isinstance(first[1], Exception)

    def deletion(self, call: Call) -> None:
        """Law 3: PyTorch's results and gradients on the remaining entries, with an empty slice of each dimension.

        Positions (of a maximum, of what is sorted) are not compared: types may count them differently.
        """
        plan = next(empty_slices(call))
        leaves, clean = call.leaves(self.differentiable, plan, "nan"), call.leaves(self.differentiable)
        try:
            args, kwargs = call.masked(leaves, plan, self.adapter.make)
            plain, masks = self.read(self.adapter.call(self.entry.function, args, kwargs))
        except _MismatchError:
            raise
        except Exception:  # refused
            return
        expected = expect(self.entry, call, clean, call.masks(plan))
        right, compared = parts_of(expected.values), []
        for value, mask, wanted, known in zip(plain, masks, right, expected.masks, strict=True):
            assert value.shape == wanted.shape, f"result of shape {tuple(value.shape)}"
            there = torch.ones_like(mask) if known is None else known.expand(mask.shape)
            # an estimate from too few entries may be a specified NaN
            assert not (mask & ~there & ~value.isnan()).any(), (
                "nothing is left of a slice, and its result is specified"
            )
            assert not (there & ~mask).any(), f"{int((there & ~mask).sum())} results are unspecified"
            compared.append(there if value.is_floating_point() else None)
            if value.is_floating_point():
                assert_close(value[there], wanted[there], "what is left")
        if any(value[mask].isnan().any() for value, mask in zip(plain, masks, strict=True)):
            return  # the gradient of such an estimate is NaN, too
        weights = cotangents_for(right, compared)
        pairs = zip(plain, weights, strict=True)
        found = self.gradients(plain, leaves, [w if part.requires_grad else None for part, w in pairs])
        assert_gradients(found, gradients(right, clean, weights), "what is left")

    def of_nothing(self, call: Call, value: Tensor) -> Tensor:
        """Mask of results that may come from too few entries, and may as well be unspecified."""
        if any(call.tensors[i].numel() == 0 for i in call.data):
            return torch.ones_like(value, dtype=torch.bool)
        return value == 0 if self.entry.name in EMPTY_BAGS else value.isnan()

    def answer(self, call: Call, plan: Plan, garbage: str | None) -> Answer | Exception:
        """Call with garbage under the masks, and run backward."""
        leaves = call.leaves(self.differentiable, plan, garbage)
        try:
            args, kwargs = call.masked(leaves, plan, self.adapter.make)
            plain, masks = self.read(self.adapter.call(self.entry.function, args, kwargs))
            grads = self.gradients(plain, leaves, cotangents_for(plain, masks))
        except _MismatchError:
            raise
        except Exception as error:  # a refusal, by any exception
            return error
        return Answer([part.detach() for part in plain], masks, grads)

    def gradients(
        self, parts: Sequence[Tensor], leaves: Sequence[Tensor], cotangents: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Gradients as plain tensors, zero where unspecified: a type may return its own type."""
        found = gradients(parts, leaves, cotangents)
        return [None if grad is None else self.read(grad)[0][0] for grad in found]

    def read(self, result: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Results as plain tensors with zeros where unspecified, and their masks."""
        plain, masks = [], []
        for part in self.parts_of(result):
            if isinstance(part, self.kind):
                mask = self.adapter.mask(part)
                values = self.adapter.values(part)
                if mask.shape != values.shape:
                    shapes = f"{tuple(mask.shape)} of values of shape {tuple(values.shape)}"
                    raise _MismatchError(f"mask of shape {shapes}")
                values = torch.where(mask, values, torch.zeros((), dtype=values.dtype))
            else:
                values = torch.as_tensor(part)
                mask = torch.ones(values.shape, dtype=torch.bool)
            plain.append(values)
            masks.append(mask)
        return plain, masks

    def parts_of(self, result: Any) -> list[Any]:
        """A result as a list: one tensor, or those of a tuple or list."""
        if isinstance(result, self.kind) or not isinstance(result, (tuple, list)):
            return [result]
        return [part for inner in result for part in self.parts_of(inner)]
