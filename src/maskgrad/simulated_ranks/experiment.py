"""The experiment ``ranks``: is the average of the gradients of several ranks that of one rank on the whole batch?"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from maskgrad.doctor import forked
from maskgrad.doctor.batches import applied, fields, replaced, tensor_of
from maskgrad.doctor.case import IN_DOUBLE, Difference, Examination, compare
from maskgrad.doctor.findings import Finding
from maskgrad.doctor.modes import WithoutDropout
from maskgrad.doctor.operations import dense
from maskgrad.doctor.reshaped import padding_length, raised, run
from maskgrad.doctor.runner import Outcome
from maskgrad.doctor.variants import selected
from maskgrad.simulated_ranks.blame import Comparison, Traced, widened
from maskgrad.simulated_ranks.groups import LAUNCHERS
from maskgrad.simulated_ranks.ranks import Ranks, RanksError, averaged

__all__ = ["across_ranks", "in_scripts"]

#: relative differences that are rounding in float32, and in float64
_ROUNDING, _IN_DOUBLE, _HALVES = 2e-5, 1e-7, (torch.float16, torch.bfloat16)
#: a difference that is as many times that of a rank whose rounding is multiplied is no rounding
_CLEAR = 20.0
_REMEDIES = {
    "denominator": """\
accumulator = mg.GradientAccumulator(model)   # .backward(losses, mask=mask), .finish(): one count for all
loss = mg.distributed.mean(mg.masked(losses, mask))
dist.all_reduce(count); loss = loss_sum / count * dist.get_world_size()   # without maskgrad""",
    "less": "loss = loss * dist.get_world_size()   # the average over the ranks divides by it",
    "more": "loss = loss / dist.get_world_size()   # or a mean where the gradients are added",
    "sample-coupling": """\
mean = mg.distributed.mean(x, 0)   # of the samples of all ranks
x = torch.cat(torch.distributed.nn.functional.all_gather(x))   # of all ranks, with gradients""",
    "norm": "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)   # before it is wrapped",
    "stopped": "dist.all_reduce(count)   # on every rank and in the same order, also where count is 0",
}


def across_ranks(case: Examination, size: int) -> None:
    """Divide the samples among ranks, and compare the average of their gradients with that of one rank."""
    masks, is_flat = _counts(case), case.documents is not None and case.documents.ids.ndim == 1
    if case.count < size or is_flat:
        why = f"{0 if is_flat else case.count} samples along the first dimension are too few for {size} ranks"
        case.report.skip("ranks", why, f"a batch of {size} samples or more, each a row")
    elif masks and all(len(set(counts.tolist())) == 1 for counts in masks):
        case.report.skip("ranks", "every rank has as many real entries", "samples of different lengths")
    else:
        all(_Division(case, *division).examined() for division in _divisions(case, size, masks))


def _counts(case: Examination) -> list[Tensor]:
    """How many entries of each sample count, by each tensor that says so."""
    masks = [padding.mask for padding in case.paddings]
    for key, tensor in ((key, tensor_of(held)) for key, held in fields(case.runner.batch).items()):
        is_mask = tensor.dtype == torch.bool or "mask" in str(key)
        masks += [tensor != (0 if is_mask else -100)] if is_mask or bool((tensor == -100).any()) else []
    rows = [mask.reshape(case.count, -1) for mask in masks if mask.ndim > 1 and len(mask) == case.count]
    return [mask.sum(1) for mask in rows]


def _divisions(case: Examination, size: int, masks: list[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
    """In order and dealt in turn; the longest first where both give the ranks as many entries, or none gives none."""
    each = case.count // size
    rows, words = torch.arange(each * size), "dealt in turn"
    in_order, dealt = [*rows.view(size, -1)], [*rows.view(-1, size).T]
    for counts in masks:
        sums = [{int(counts[part].sum()) for part in parts} for parts in (in_order, dealt)]
        if max(map(len, sums)) == 1 or (int((counts == 0).sum()) >= each and 0 not in sums[0] | sums[1]):
            longest = counts.argsort(descending=True, stable=True)[-each * size :]
            dealt, words = [*longest.view(size, -1)], "longest first"
    some = "" if each * size == case.count else f" {each * size} of {case.count}"
    yield f"on {size} ranks,{some} samples in order", in_order
    yield f"on {size} ranks,{some} samples {words}", dealt


class _Continued:
    """Ranks of a script without a process group: processes that go on with it, each with a batch of its own."""

    calls_backward = sends_gradients = False

    def __init__(self, runner: Any, batches: list[Any], kind: Any, _: bool = False) -> None:
        self._runner, self._batches, self.modes = runner, batches, [kind() for _ in batches]

    def run(self) -> Outcome:
        found = defaultdict[str, list[Tensor]](list)
        for mode, batch in zip(self.modes, self._batches, strict=True):
            kept: Any = lambda made, mode=mode: (made.cloned(), mode.draws, getattr(mode, "results", []))  # noqa: E731
            made, mode.draws, mode.results = self._runner.run(mode, batch, after=kept)
            for name, gradient in made.gradients.items():
                found[name].append(dense(gradient))
        return averaged(found, len(self.modes))


@contextlib.contextmanager
def in_scripts(size: int) -> Iterator[None]:
    """Inside, a step of a script that is watched is tried on ranks, too, when it is run with other lengths."""

    def both(case: Examination) -> None:
        padding_length(case)
        used = [name for name in sys.modules if name.startswith(LAUNCHERS)]
        used += ["torch.distributed"] * torch.distributed.is_initialized()
        if used or (case.paddings and not case.report.experiments):
            why = f"the script uses {used[0]}" if used else "the step could not be run again"
            case.report.skip("ranks", why, f"mg.doctor.examine(step, batch, ranks={size}) to the program")
        else:
            across_ranks(case, size)

    with mock.patch.object(forked, "padding_length", both):
        yield


class _Division:
    """The batch divided among ranks."""

    def __init__(self, case: Examination, words: str, parts: list[Tensor]) -> None:
        batch, rows = case.runner.batch, torch.cat(parts)
        self.case, self.report, self.words, self.size = case, case.report, words, len(parts)
        self.kind: Any = Ranks if hasattr(case.runner, "state") else _Continued
        #: that of one rank, and those of several; whether they have all samples
        chosen = [selected(batch, part, case.count) for part in (rows, *parts)]
        self.batches = chosen[:1], chosen[1:]
        self.is_whole = len(rows) == case.count

    def examined(self) -> bool:
        """Compare; whether another division is worth a look."""
        try:
            made = run(self.case).outcome if self.is_whole else run(self.case, self.batches[0][0]).outcome
            held = {name: dense(held) for name, held in made.gradients.items() if name not in made.own}
            return self._compared(Outcome(None, held))
        except RanksError as error:
            if error.by_ranks:
                self._found("denominator", error, str(error), "stopped", str(error))
            else:
                self.report.skip("ranks", f"{self.words}: {error}")
        except Exception as error:
            self.report.skip("ranks", f"{self.words}, the program fails on one rank: {raised(error)}")
        return False

    def _compared(self, alone: Outcome) -> bool:
        runner, batches = self.case.runner, self.batches[1]
        if alone.has_nan():
            self.report.skip("ranks", "the gradient of one rank is NaN", "a batch for which it is none")
            return False
        averages = False
        ranks = self.kind(runner, batches, WithoutDropout)
        difference = compare(alone, together := ranks.run().cloned())
        if difference.relative > _ROUNDING and ranks.calls_backward and not ranks.sends_gradients:
            # what follows backward(), such as clipping, sees an average where the module is wrapped
            ranks, averages = self.kind(runner, batches, WithoutDropout, True), True
            difference = compare(alone, together := ranks.run().cloned())
        is_same, draws = difference.relative <= _ROUNDING, [d for mode in ranks.modes for d in mode.draws]
        if draws and not is_same:
            why = "the program draws its own random numbers, which differ between ranks"
            self.report.note("ranks", f"skipped: {why}", draws[0][0])
            self.report.skip("ranks", why, "them to the batch")
        elif is_same or self._is_rounding(difference, [alone, together], averages):
            self.report.tried("ranks", self.words, "nothing changed", fields(self.case.runner.batch))
            return True
        return False

    def _is_rounding(self, difference: Difference, both: list[Outcome], averages: bool) -> bool:
        """Repeat it and keep results, in float64 if what multiplies rounding changes as much; judge what is none."""
        made = [self._traced(0, averages, double=False)]
        is_clear = bool(difference) and difference.relative > _CLEAR * compare(both[0], made[0][1]).relative
        if not is_clear or any(result.value.dtype in _HALVES for result in made[0][0].modes[0].results):
            try:
                made = [self._traced(at, averages, double=True) for at in (0, 1)]
                both = [outcome for _, outcome in made]
                difference = compare(*both)
            except Exception as error:
                if not is_clear:
                    why = f"a relative difference of {difference.relative:.0e} may be rounding"
                    why = f"{self.words}, {why}, and in float64 it fails: {raised(error)}"
                    self.report.skip("ranks", why, IN_DOUBLE)
                    return False
            if difference.relative <= _IN_DOUBLE:
                return True
        (single, _), (ranks, _) = *made, *([] if made[1:] else [self._traced(1, averages, double=False)])
        self._judge(difference, both, Comparison(single.modes[0], ranks.modes))
        return False

    def _traced(self, at: int, averages: bool, *, double: bool) -> tuple[Ranks, Outcome]:
        """One rank, or several: their results, and gradients."""
        wide = lambda b: replaced(b, {k: applied(held, widened) for k, held in fields(b).items()})  # noqa: E731
        batches = list(map(wide, self.batches[at])) if double else self.batches[at]
        ranks = self.kind(self.case.runner, batches, partial(Traced, double=double), averages)
        return ranks, ranks.run().cloned()

    def _judge(self, difference: Difference, both: list[Outcome], comparison: Comparison) -> None:
        (alone, together), results, ratio = both, comparison.results, _ratio(*both)
        scaled = any(abs(ratio - off) < 1e-3 * off for off in (self.size, 1 / self.size))
        kind, at = comparison.blamed(is_scaled=scaled) if results else ("denominator", -1)
        result = results[at] if results else None
        empty = torch.zeros(())
        pairs = {n: [one.gradients.get(n, empty) for one in (together, alone)] for n in difference.gradients}
        shares = {n: float((after - one).norm() / one.norm()) for n, (after, one) in pairs.items()}
        name = max(shares, key=lambda n: math.inf if math.isnan(shares[n]) else shares[n])
        off = "is NaN" if math.isnan(shares[name]) else f"is {100 * shares[name]:.2g} % off"
        norms = [f"{gradient.norm():.6g}" for gradient in pairs[name]]
        message = f"the average gradient of {name} {off} (norm {norms[0]}, {norms[1]} on one rank)"
        remedy = "norm" if result is not None and "batch_norm" in result.operation else kind
        if scaled:
            message += f": off by exactly {self.size} on every parameter, {ratio:.3g} times that of one rank"
            remedy = "less" if ratio < 1 else "more"
        elif result is not None:
            first = f"{result.operation} is the first operation that differs between ranks and one"
            message = f"{first}{comparison.words(at)}: {message}"
        self._found(kind, result, message, remedy, difference.words())

    def _found(self, kind: str, where: Any, message: str, remedy: str, result: str) -> None:
        self.report.tried("ranks", self.words, result, fields(self.case.runner.batch))
        found = Finding.at(where, kind if kind == "denominator" else "order", f"{self.words}, {message}")
        self.report.add([replace(found, kind=kind, remedy=_REMEDIES[remedy])])


def _ratio(alone: Outcome, together: Outcome) -> float:
    """The factor between the gradients if it is the same for all parameters, and no other difference; else 0."""
    pairs = [(one, together.gradients.get(name, one * 0)) for name, one in alone.gradients.items()]
    before, after = (torch.cat([pair[at].double().flatten() for pair in pairs]) for at in (0, 1))
    ratio = before.dot(after) / before.dot(before)
    return float(ratio) if (after - ratio * before).norm() <= 1e-4 * after.norm() else 0.0
