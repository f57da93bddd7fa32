"""The experiment `denominator`: the batch in parts, and the whole batch."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from maskgrad.doctor.case import Examination
from maskgrad.doctor.comparison import compare
from maskgrad.doctor.operations import dense
from maskgrad.doctor.reshaped import DRAWS, finding, last_division, longest_first, order, run, splits
from maskgrad.doctor.runner import Outcome
from maskgrad.doctor.variants import selected
from maskgrad.errors import ExaminationError

__all__ = ["denominator"]

#: the weights of parts that a training loop can use without counting tokens
_RIGHT = ("1 (a sum)", "the number of samples")
#: named in the message if it fits, too
_MEANS = "the number of parts (a mean of means)"


def denominator(case: Examination) -> None:
    """The batch whole and in parts, if that is asked for: parts belong to the training loop; `order` sees a step's."""
    count = case.count
    if "denominator" not in case.asked:
        return
    if splits(case):
        order(case)
        return
    if count < 2:
        raise ExaminationError(
            f"batch: expected at least two samples, to be split into parts, found {count}; give a larger batch"
        )
    if any(shape for _, shape in run(case).draws):
        case.note("denominator", DRAWS)
        return
    small = max(1, count // 4)
    # the first part holds more samples than the others, if there are enough
    ways = [[count - small * (number - 1), *[small] * (number - 1)] for number in (2, 3) if number <= count]
    _compare_parts(case, ways)


def _compare_parts(case: Examination, ways: list[list[int]]) -> None:
    """One denominator has to fit in all ways, and to be the only one."""
    count, as_it_is, longest = case.count, torch.arange(case.count), longest_first(case)
    # as the batch is, and so that parts differ most in their tokens
    arranged = (as_it_is, as_it_is.flip(0) if torch.equal(longest, as_it_is) else longest)
    fitting: dict[str, list[float]] = {}
    for number, (rows, sizes) in enumerate(itertools.product(arranged, ways)):
        batch = selected(case.runner.batch, rows, count)
        parts = [selected(batch, part, count) for part in as_it_is.split(sizes)]
        whole, outcomes = run(case, batch).outcome, [run(case, part).outcome for part in parts]
        weights = _weights(case, rows, sizes)
        found = {name: compare(whole, _combined(outcomes, by), count=count) for name, by in weights.items()}
        fitting = {
            name: [*fitting.get(name, []), *factors]
            for name, factors in weights.items()
            if not found[name] and (not number or name in fitting)
        }
        closest = next((name for name in _RIGHT if name in fitting), _RIGHT[1])
        how = "" if torch.equal(rows, as_it_is) else f" in the order {rows.tolist()},"
        words = f"with the batch of {count},{how} in parts of {', '.join(map(str, sizes))},"
        case.tried(
            "denominator", words, found[closest].words() or f"nothing changed, parts weighted by {closest}"
        )
        if closest not in fitting:
            words += _tried(list(fitting))
            case.report.add([finding("denominator", last_division(case), words, found[closest])])
            return
    # equal weights are one denominator: samples of equal length are as good as their tokens
    others = [
        name
        for name, factors in fitting.items()
        if not torch.allclose(torch.tensor(factors), torch.tensor(fitting[closest]), rtol=0, atol=1e-6)
    ]
    if others:
        case.note(
            "denominator",
            f"cannot be decided: the parts sum to the whole batch weighted by {closest}, and also by "
            f"{' and by '.join(others)}; use a batch whose samples differ in their values and lengths",
        )


def _weights(case: Examination, rows: Tensor, sizes: list[int]) -> dict[str, list[float]]:
    """How much each part counts, by the name of the denominator: samples may count by their real entries."""
    keys: dict[tuple[float, ...], list[str]] = {}  # once for all tensors that have the same ones
    for padding in case.paddings:
        if padding.mask.ndim and padding.mask.shape[0] == case.count:
            entries = padding.mask.reshape(case.count, -1).sum(1).tolist()
            keys.setdefault(tuple(entries), []).append(repr(padding.key))
    counts = {_RIGHT[1]: torch.ones(case.count)}
    counts |= {f"the number of real entries of {', '.join(k)}": torch.tensor(n) for n, k in keys.items()}
    return {_RIGHT[0]: [1.0] * len(sizes), _MEANS: [1 / len(sizes)] * len(sizes)} | {
        name: [float(part.sum() / of_samples.sum()) for part in of_samples[rows].split(sizes)]
        for name, of_samples in counts.items()
    }


def _tried(fitting: list[str]) -> str:
    others = f"weighted by {' or by '.join(fitting)} they do"
    if not fitting:
        others = "if the loss compares samples, no weights do: use mg.coupled_backward(model, parts, loss)"
    return (
        f" the parts, weighted by {' or by '.join(_RIGHT)}, do not sum to the whole batch ({others}): "
        f"weighted by {_RIGHT[1]},"
    )


def _combined(outcomes: list[Outcome], factors: list[float]) -> Outcome:
    """What the parts give, weighed and added up."""
    weighed = list(zip(outcomes, factors, strict=True))
    losses = [run.loss.reshape(()) * factor for run, factor in weighed if run.loss is not None]
    parts = {
        name: [dense(run.gradients[name]) * factor for run, factor in weighed if name in run.gradients]
        for name in dict.fromkeys(name for run in outcomes for name in run.gradients)
    }
    gradients = {name: torch.stack(found).sum(0) for name, found in parts.items()}
    own = frozenset().union(*(run.own for run in outcomes))
    return Outcome(torch.stack(losses).sum() if losses else None, gradients, own=own)
