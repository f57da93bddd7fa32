"""The experiment `denominator`: the batch in parts, in one process or on as many ranks, and the whole batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.case import Examination
from maskgrad.doctor.comparison import compare
from maskgrad.doctor.operations import dense
from maskgrad.doctor.reshaped import (
    DRAWS,
    finding,
    last_division,
    longest_first,
    order,
    run_as_it_is,
    run_without_dropout,
    splits,
)
from maskgrad.doctor.runner import Outcome
from maskgrad.doctor.variants import selected
from maskgrad.errors import ExaminationError

__all__ = ["denominator", "takes_parts"]

#: the weights of parts that a training loop can use without counting tokens
_RIGHT = ("1 (a sum)", "the number of samples")
#: named in the message if it fits, too
_MEANS = "the number of parts (a mean of means)"


def denominator(case: Examination) -> None:
    """A step that splits its batch, or is given the sizes, or the parts one by one."""
    own = takes_parts(case.runner.step)
    if case.parts is None and not own:
        if "denominator" not in case.asked:
            return  # parts belong to the training loop, and the step does not know them; `order` sees its own
        if splits(case):
            order(case)
            return
    ways = _sizes(case.parts, case.count)
    if any(shape for _, shape in run_as_it_is(case)[1]):
        case.note("denominator", DRAWS)
    elif own:
        _split_by_the_step(case, ways)
    else:
        _added_up(case, ways)


def takes_parts(step: Callable[..., Any]) -> bool:
    """Whether a step is given the sizes of its parts."""
    try:
        return "parts" in inspect.signature(step).parameters
    except (TypeError, ValueError):
        return False


def _sizes(parts: Any, count: int) -> list[list[int]]:
    if count < 2:
        raise ExaminationError(
            f"batch: expected at least two samples, to be split into parts, found {count}; give a larger batch"
        )
    if parts is None:
        return [_unequal(number, count) for number in (2, 3) if number <= count]
    if type(parts) is int:
        if 2 <= parts <= count:
            return [_unequal(parts, count)]
        expected, remedy = f"between 2 and {count}, the number of samples", "parts=2"
    elif isinstance(parts, Sequence) and parts and all(type(size) is int and size > 0 for size in parts):
        if sum(parts) == count and len(parts) > 1:
            return [list(parts)]
        parts = f"{list(parts)}, which add up to {sum(parts)}"
        expected = f"the sizes of at least two parts that add up to {count}, the number of samples"
        remedy = f"parts={_unequal(2, count)}"
    else:
        parts, expected, remedy = repr(parts), "a number of parts or their sizes", "parts=2 or parts=[3, 1]"
    raise ExaminationError(f"parts: expected {expected}, found {parts}; write {remedy}")


def _unequal(number: int, count: int) -> list[int]:
    """The first part holds more samples than the others, if there are enough."""
    small = max(1, count // (number + 1))
    return [count - small * (number - 1), *[small] * (number - 1)]


def _arranged(case: Examination) -> list[Tensor]:
    """As the batch is, and so that parts differ most in their tokens."""
    as_it_is, longest = torch.arange(case.count), longest_first(case)
    return [as_it_is, as_it_is.flip(0) if torch.equal(longest, as_it_is) else longest]


def _split_by_the_step(case: Examination, ways: list[list[int]]) -> None:
    """The step splits its batch into parts of these sizes: all ways give what the whole batch gives."""
    step, count = case.runner.step, case.count
    for rows in _arranged(case):
        batch = selected(case.runner.batch, rows, count)
        found = []
        try:
            for sizes in ([count], *ways):
                case.runner.step = lambda batch, sizes=sizes: step(batch, parts=sizes)  # type: ignore[call-arg, misc]
                found.append(run_without_dropout(case, batch)[0])
        finally:
            case.runner.step = step
        for sizes, outcome in zip(ways, found[1:], strict=True):
            words = _words(count, sizes, rows)
            difference = compare(found[0], outcome, count=count)
            case.tried("denominator", words, difference.words("after") or "nothing changed")
            if difference:
                case.report.add([finding("denominator", last_division(case), words, difference)])
                return


def _added_up(case: Examination, ways: list[list[int]]) -> None:
    """Parts run one by one and are added up; one denominator has to fit in all ways, and to be the only one."""
    count, counts = case.count, _counts(case)
    fitting: dict[str, list[float]] = {}
    first, whole = None, run_as_it_is(case)[0]
    arranged = [(rows, sizes) for rows in _arranged(case) for sizes in ways]
    for number, (rows, sizes) in enumerate(arranged):
        outcomes = [
            run_without_dropout(case, selected(case.runner.batch, rows[part], count))[0]
            for part in torch.arange(count).split(sizes)
        ]
        weights = {_RIGHT[0]: [1.0] * len(sizes), _MEANS: [1 / len(sizes)] * len(sizes)}
        for name, of_samples in counts.items():
            weights[name] = [float(part.sum() / of_samples.sum()) for part in of_samples[rows].split(sizes)]
        differences = {
            name: compare(whole, _combined(outcomes, factors), count=count)
            for name, factors in weights.items()
        }
        fitting = {
            name: [*fitting.get(name, []), *factors]
            for name, factors in weights.items()
            if not differences[name] and (not number or name in fitting)
        }
        words = _words(count, sizes, rows)
        if first is None and not set(fitting) & set(_RIGHT):
            first = (words, differences[_RIGHT[1]])
        closest = next((name for name in _RIGHT if name in fitting), _RIGHT[1])
        nothing = f"nothing changed, parts weighted by {closest}"
        case.tried("denominator", words, differences[closest].words("after") or nothing)
    _judge(case, fitting, first)


def _counts(case: Examination) -> dict[str, Tensor]:
    """What each sample may count: itself, or its real entries, once for all tensors that have the same ones."""
    keys: dict[tuple[float, ...], list[str]] = {}
    for padding in case.paddings:
        if padding.mask.ndim and padding.mask.shape[0] == case.count:
            entries = padding.mask.reshape(case.count, -1).sum(1).tolist()
            keys.setdefault(tuple(entries), []).append(repr(padding.key))
    tokens = {f"the number of real entries of {', '.join(k)}": torch.tensor(n) for n, k in keys.items()}
    return {_RIGHT[1]: torch.ones(case.count), **tokens}


def _judge(case: Examination, fitting: dict[str, list[float]], first: Any) -> None:
    right = [name for name in _RIGHT if name in fitting]
    if not right:
        words, difference = first
        tried = f"the parts, weighted by {' or by '.join(_RIGHT)}, do not sum to the whole batch"
        if fitting:
            tried += f" (weighted by {' or by '.join(fitting)} they do)"
        else:
            tried += (
                " (if the loss compares samples, no weights do: use mg.coupled_backward(model, parts, loss))"
            )
        message = f"{words} {tried}: weighted by {_RIGHT[1]},"
        case.report.add([finding("denominator", last_division(case), message, difference)])
        return
    # equal weights are one denominator: samples of equal length are as good as their tokens
    others = [
        name
        for name, weights in fitting.items()
        if any(abs(a - b) >= 1e-6 for a, b in zip(weights, fitting[right[0]], strict=True))
    ]
    if others:
        case.note(
            "denominator",
            f"cannot be decided: the parts sum to the whole batch weighted by {right[0]}, and also by "
            f"{' and by '.join(others)}; use a batch whose samples differ in their values and lengths",
        )


def _words(count: int, sizes: list[int], rows: Tensor) -> str:
    order = "" if torch.equal(rows, torch.arange(count)) else f" in the order {rows.tolist()},"
    return f"with the batch of {count},{order} in parts of {', '.join(map(str, sizes))},"


def _combined(outcomes: list[Outcome], factors: list[float]) -> Outcome:
    """What the parts give, weighed and added up."""
    losses, gradients = [], dict[str, Tensor]()
    for outcome, factor in zip(outcomes, factors, strict=True):
        if outcome.loss is not None:
            losses.append(outcome.loss.reshape(()) * factor)
        for name, gradient in outcome.gradients.items():
            part = dense(gradient) * factor
            gradients[name] = gradients[name] + part if name in gradients else part
    own = frozenset().union(*(outcome.own for outcome in outcomes))
    return Outcome(torch.stack(losses).sum() if losses else None, gradients, own=own)
