"""How a case is measured: results first, then all contenders in turns, in one process.

``torch.utils.benchmark.Timer`` holds the clock. Contenders are interleaved, so that what else the machine does meets
all of them alike; who begins changes from round to round, because whoever goes second finds the operands in the cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.benchmark import Timer

from benchmarks.case import OURS, Case, Comparison, Implementation, LeftOutError, WrongResultError
from benchmarks.memory import peak
from benchmarks.results import Row
from benchmarks.spread import spread

__all__ = ["TimingConfig", "measure"]

Clock = Callable[[], float]


@dataclass(frozen=True)
class TimingConfig:
    """How long to measure: ``seconds`` for a case, of which each contender has its share.

    All take part in the fewest rounds; a slow one then stays away, and fast ones go on, the most rounds at most.
    """

    fewest: int = 3
    most: int = 25
    seconds: float = 0.5
    #: a repetition lasts so long at least; a faster contender is called several times in each. A call warms up before
    shortest: float = 2e-3


def measure(
    case: Case,
    pace: TimingConfig,
    wanted: Container[str],
    notice: Callable[[str], None] = lambda _: None,
    clock: Clock = time.perf_counter,
    warming: float = 0.0,
) -> list[Row]:
    """Check and time the contenders of ``case`` that are ``wanted``; maskgrad always takes part.

    Each contender runs for ``warming`` seconds that do not count: a process gets large pages of memory only after it
    has asked for the same amount a few times, and what was slow until then is nobody's merit. A contender that cannot
    do it here is left out, and ``notice`` is told why.

    Raises:
        WrongResultError: a result is wrong, or maskgrad raised an error. Nothing was timed.
        LeftOutError: the case has no meaning here.
    """
    try:
        contest = case.prepare()
    except LeftOutError:
        raise
    except Exception as error:
        raise WrongResultError(f"{case.family}, {case} cannot be prepared: {_in_words(error)}") from error
    contenders = _checked(case, contest, wanted, notice)
    peaks = {name: peak(each.call) for name, each in contenders.items()} if contest.weighs else {}
    timers = {name: _timer(each.call, clock) for name, each in contenders.items()}
    if warming:
        for timer in timers.values():
            timer.blocked_autorange(min_run_time=warming)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    spent, calls = dict.fromkeys(contenders, 0.0), dict.fromkeys(contenders, 1)
    order = list(contenders)
    share = pace.seconds / len(order)
    for number in range(pace.most):
        if number >= pace.fewest:
            order = [name for name in order if spent[name] <= share]
        first = number % max(len(order), 1)
        for name in (*order[first:], *order[:first]):
            found = timers[name].blocked_autorange(min_run_time=pace.shortest)
            times[name].append(found.median)
            calls[name] = found.number_per_run * len(found.times)
            spent[name] += sum(found.raw_times)
    return _rows(case, contest, times, calls, peaks)


def _timer(call: Callable[[], Any], clock: Clock) -> Timer:
    # Timer would take one thread, whatever PyTorch has been told.
    return Timer("call()", globals={"call": call}, timer=clock, num_threads=torch.get_num_threads())


def _checked(
    case: Case, contest: Comparison, wanted: Container[str], notice: Callable[[str], None]
) -> dict[str, Implementation]:
    """The contenders, after a look at what each computes."""
    found: dict[str, Implementation] = {}
    ours: Any = None
    for name, make in contest.contenders.items():
        if not name.startswith(OURS) and name not in wanted:
            continue
        try:
            contender = make()
            result = contender.call()
            value = None if contender.read is None else contender.read(result)
        except LeftOutError as reason:
            if name == OURS:
                raise
            notice(f"{case.family}, {case}: without {name}: {reason}")
            continue
        except Exception as error:
            if name.startswith(OURS):
                raise WrongResultError(
                    f"{name} failed in {case.family}, {case}: {_in_words(error)}"
                ) from error
            notice(f"{case.family}, {case}: without {name}: {_in_words(error)}")
            continue
        del result
        if contender.read is not None:
            try:
                contest.verify(value)
                if name != OURS:
                    contest.agree(ours, value)
            except AssertionError as error:
                raise WrongResultError(
                    f"the result of {name} is wrong in {case.family}, {case}: {error}"
                ) from None
        if name == OURS:
            ours = value
        found[name] = contender
    return found


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _rows(
    case: Case,
    contest: Comparison,
    times: dict[str, list[float]],
    calls: dict[str, int],
    peaks: dict[str, int],
) -> list[Row]:
    ours = spread(times[OURS]).median
    rows = []
    for name, seconds in times.items():
        found = spread(seconds)
        rows.append(
            Row(
                family=case.family,
                operation=case.operation,
                work=case.work,
                shape="x".join(map(str, case.shape)),
                entries=case.entries,
                density=case.density,
                dtype=case.dtype,
                note=case.note,
                peer=name,
                repetitions=len(seconds),
                calls=calls[name],
                median_ms=found.median * 1e3,
                q1_ms=found.q1 * 1e3,
                q3_ms=found.q3 * 1e3,
                ratio=found.median / ours,
                bytes=contest.bytes_moved,
                memory=peaks[name] / peaks[OURS] if peaks else None,
            )
        )
    return rows
