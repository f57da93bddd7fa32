"""How a case is measured: results first, then all contenders in turns, in one process.

Contenders are interleaved, so that whatever else the machine does meets all of them alike; who begins changes from
round to round, because whoever goes second finds the operands in the cache.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Container
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.case import OURS, Case, Contender, Contest, LeftOutError, WrongResultError
from benchmarks.results import Row
from benchmarks.spread import spread

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Pace", "measure"]

Clock = Callable[[], float]


@dataclass(frozen=True)
class Pace:
    """How long to measure: ``seconds`` for a case, of which each contender has its share.

    All take part in the fewest rounds; a slow one then stays away, and fast ones go on, the most rounds at most.
    """

    fewest: int = 3
    most: int = 25
    seconds: float = 0.5
    #: a repetition lasts so long at least; a faster contender is called several times in each
    shortest: float = 2e-3


def measure(
    case: Case,
    pace: Pace,
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
    for each in contenders.values():
        _warm_up(each.call, warming, clock)
    # Once more, now that everything is compiled and in place: how long is a call?
    calls = {name: _calls(_timed(each.call, 1, clock), pace) for name, each in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    with _no_garbage_collection():
        share = pace.seconds / len(order)
        for number in range(pace.most):
            if number >= pace.fewest:
                order = [name for name in order if sum(times[name]) * calls[name] <= share]
            first = number % max(len(order), 1)
            for name in (*order[first:], *order[:first]):
                times[name].append(_timed(contenders[name].call, calls[name], clock) / calls[name])
    return _rows(case, contest, times, calls)


def _warm_up(call: Callable[[], Any], seconds: float, clock: Clock) -> None:
    spent = 0.0
    for _ in range(100):
        if spent >= seconds:
            return
        spent += _timed(call, 1, clock)


def _checked(
    case: Case, contest: Contest, wanted: Container[str], notice: Callable[[str], None]
) -> dict[str, Contender]:
    """The contenders, after a look at what each computes."""
    found: dict[str, Contender] = {}
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


def _timed(call: Callable[[], Any], times: int, clock: Clock) -> float:
    """Seconds that so many calls take. What a call returns is dropped within its own time."""
    start = clock()
    for _ in range(times):
        call()
    return clock() - start


def _calls(seconds: float, pace: Pace) -> int:
    if seconds <= 0:
        return 1
    return max(1, min(100_000, math.ceil(pace.shortest / seconds)))


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """So that no contender pays for what another left behind."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _rows(case: Case, contest: Contest, times: dict[str, list[float]], calls: dict[str, int]) -> list[Row]:
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
            )
        )
    return rows
