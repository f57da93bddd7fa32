"""Writes the results into docs/is_my_masking_right.md: ``python -m tests.doctor.table`` (a minute)."""

from __future__ import annotations

import sys
from collections import Counter

from tests.doctor.pairs import Pair, diagnose, pairs
from tests.doctor.programs_examined import PROGRAMS
from tests.written_out import Region

__all__ = ["KNOWN", "PAGE", "table"]

PAGE = Region("is_my_masking_right.md", "doctor table")

#: What the doctor does not do yet: pairs that are "missed", or "found at another line". The tests hold it to this list.
KNOWN: dict[str, str] = {
    # the line at which the batch's own NaN or infinity first makes one, and not that at which it is real
    "nan_times_zero": "found at another line",
    # packed sequences, what is cut off a sequence and put back, what an index chooses
    "bidirectional_over_the_stay": "found at another line",
    "time_to_the_next_event": "found at another line",
    "preferences_over_padding": "found at another line",
    "where_after_the_nan": "found at another line",
}


def table(all_pairs: list[Pair]) -> str:
    """The page: counts, and one row for each pair. What it says of a pair is what the pair's test asserts."""
    verdicts = Counter(KNOWN.get(pair.name, "found at its line") for pair in all_pairs)
    right, other = verdicts["found at its line"], verdicts["found at another line"]
    head = f"""Written by `python -m tests.doctor.table` from `tests/doctor/corpus/`.

Of {len(all_pairs)} programs with a mistake **{right + other} are found**: {right} at the line marked
in its file, {other} at another line, and **{verdicts["missed"]} missed**. In the {len(all_pairs)} fixed programs
and in {len(PROGRAMS)} longer correct ones there are **0 false alarms**.

| kind | program | mistake | thread | result |
| --- | --- | --- | --- | --- |
"""
    ordered = sorted(all_pairs, key=lambda pair: (pair.kind, pair.name))
    rows = (" | ".join(text.replace("|", "\\|") for text in cells(pair)) for pair in ordered)
    return head + "".join(f"| {row} |\n" for row in rows)


def cells(pair: Pair) -> tuple[str, ...]:
    result = KNOWN.get(pair.name, "found at its line")
    return pair.kind, f"`{pair.name}`", pair.title, pair.thread, result


def main() -> int:
    """Write the page, and say what the tests would not agree with."""
    found = pairs()
    PAGE.write(table(found))
    wrong = 0
    for pair in found:
        outcome = diagnose(pair)
        if outcome.verdict != KNOWN.get(pair.name, "found at its line") or outcome.alarms:
            wrong += 1
            sys.stderr.write(f"{pair.name}: {outcome}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
