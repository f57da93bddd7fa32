"""The course of a run: every case of every family, rows kept as they come."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from benchmarks.case import Case, LeftOutError, WrongResultError
from benchmarks.goals import judged
from benchmarks.peers import why_absent
from benchmarks.plan import QUICK, Family, Plan
from benchmarks.provenance import provenance
from benchmarks.results import Row, with_provenance, write_rows
from benchmarks.timing import Clock, measure

__all__ = ["Listener", "Outcome", "run"]


class Listener(Protocol):
    """Is told how the run goes on."""

    def family(self, family: Family, cases: int) -> None:
        """A family begins, with so many cases."""

    def case(self, case: Case) -> None:
        """A case begins."""

    def measured(self, rows: Sequence[Row]) -> None:
        """A case was measured; ``rows`` is empty if it was left out."""

    def notice(self, message: str) -> None:
        """Something was left out."""


@dataclass
class Outcome:
    """What a run found."""

    rows: list[Row] = field(default_factory=list)
    #: one message for each family that was stopped
    failures: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False


def run(
    plan: Plan,
    families: Sequence[Family],
    out: Path,
    listener: Listener,
    clock: Clock = time.perf_counter,
) -> Outcome:
    """Measure what ``plan`` asks for and write ``out/<family>.csv`` for each family.

    A family stops at its first wrong result, and what it had measured is dropped: it may be wrong as well. Ctrl-C ends
    the run; what was measured until then is written.
    """
    outcome = Outcome(facts=provenance())
    wanted = _wanted(plan, listener)
    gc.freeze()  # what is here already is not looked through again after each case
    try:
        _families(outcome, plan, families, out, listener, clock, wanted)
    finally:
        gc.unfreeze()
    return outcome


def _families(
    outcome: Outcome,
    plan: Plan,
    families: Sequence[Family],
    out: Path,
    listener: Listener,
    clock: Clock,
    wanted: frozenset[str],
) -> None:
    """Fill ``outcome``, family by family."""
    for family in plan.chosen(families):
        cases = plan.cases(family)
        listener.family(family, len(cases))
        rows: list[Row] = []
        try:
            for number, case in enumerate(cases):
                rows += _measured(case, plan, wanted, listener, clock, first=number == 0)
        except WrongResultError as error:
            outcome.failures.append(str(error))
            rows = []
        except KeyboardInterrupt:
            outcome.interrupted = True
        finally:
            family.forget()
        if rows:
            rows = with_provenance(judged(rows), outcome.facts)
            write_rows(out / f"{family.name}.csv", rows)
            outcome.rows += rows
        if outcome.interrupted:
            break


def _wanted(plan: Plan, listener: Listener) -> frozenset[str]:
    """The peers that take part; the absent ones are named."""
    asked = plan.wanted_peers()
    for peer in asked:
        reason = why_absent(peer)
        if reason:
            listener.notice(f"without {peer}: {reason}")
    return frozenset(peer for peer in asked if not why_absent(peer))


def _measured(
    case: Case,
    plan: Plan,
    wanted: frozenset[str],
    listener: Listener,
    clock: Callable[[], float],
    first: bool,
) -> list[Row]:
    listener.case(case)
    gc.collect()  # the operands of the last case, which may be large
    pace = QUICK if plan.quick else plan.pace
    rows: list[Row] = []
    try:
        # torch.masked says at every turn that it is a prototype, sparse tensors that they are beta
        with warnings.catch_warnings(), torch.sparse.check_sparse_tensor_invariants(False):
            warnings.simplefilter("ignore")
            rows = measure(case, pace, wanted, listener.notice, clock, pace.seconds if first else 0.0)
    except LeftOutError as reason:
        listener.notice(f"{case.family}, {case}: left out: {reason}")
    listener.measured(rows)
    return rows
