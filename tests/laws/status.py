"""What is to be said of each entry of the database: the classification behind the coverage table."""

from __future__ import annotations

import functools
from typing import NamedTuple

import maskgrad as mg
from tests.laws.any_type.evaluation import attempt
from tests.laws.any_type.notices import without_notices
from tests.laws.any_type.operands import Call, fully_specified
from tests.laws.any_type.operator_database import ENTRIES, Entry
from tests.laws.effort import samples_of
from tests.laws.evaluation import unread
from tests.laws.oracles import oracle_of

__all__ = ["STATUSES", "Status", "checked_entries", "entries_to_answer_for", "refused_entries", "status_of"]

#: Each status, with what it says.
STATUSES = {
    "supported": "it has a rule, and passed the laws",
    "unproven": "it has a rule, but the laws have no oracle for it yet",
    "refused": "it has no meaning on incomplete data (`UndefinedOnMaskedError`)",
    "missing": "not yet (`UnsupportedOperationError`)",
    "broken": "it returns without a rule, or breaks a law",
}

#: Making samples takes longer than asking; a few show whether the answer is "never".
LOOKED_AT = 3


class Status(NamedTuple):
    name: str
    reason: str = ""
    remedy: str = ""


def entries_to_answer_for() -> list[Entry]:
    """The database, less what no record could serve."""
    return [entry for entry in ENTRIES if not entry.outside]


@functools.cache
def status_of(entry: Entry) -> Status:
    """By its record, or by what happens to a sample that may be incomplete."""
    with without_notices():
        return classify(entry)


def classify(entry: Entry) -> Status:
    calls = [
        call for sample in samples_of(entry, looked_at=LOOKED_AT) if (call := Call.of(entry, sample)).data
    ]
    if entry.operation is not None:
        answers = [answer(entry, call) for call in calls]
        if calls and all(isinstance(a, mg.UndefinedOnMaskedError) for a in answers):
            return Status("refused", answers[0].reason, answers[0].remedy)
        return Status("supported" if oracle_of(entry.operation) else "unproven")
    found = answer(entry, calls[0]) if calls else mg.UnsupportedOperationError(entry.name)
    if isinstance(found, mg.UndefinedOnMaskedError):
        return Status("refused", found.reason, found.remedy)
    if isinstance(found, Exception):
        return Status("missing")
    return Status("broken", "it returns, but has no rule")


def answer(entry: Entry, call: Call) -> object:
    """The result of the call on data that may be incomplete, or the exception."""
    args, kwargs = call.masked(call.leaves(False), fully_specified(call))
    with unread():
        return attempt(entry.function, args, kwargs)


def checked_entries() -> list[Entry]:
    """The entries that the laws are applied to."""
    return [entry for entry in entries_to_answer_for() if status_of(entry).name == "supported"]


def refused_entries() -> list[Entry]:
    """The entries that have no meaning on incomplete data."""
    return [entry for entry in entries_to_answer_for() if status_of(entry).name == "refused"]
