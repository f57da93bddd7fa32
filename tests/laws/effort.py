"""How much is tried of an entry of the database in this run."""

from __future__ import annotations

import torch

from tests.effort import is_light
from tests.laws.any_type import operator_database
from tests.laws.any_type.operator_database import Entry
from tests.laws.any_type.samples import LOOKED_AT, OWN, Effort, Sample

__all__ = ["OTHER", "effort_for", "effort_of", "samples_of"]

#: In the other dtypes and forms the meaning is the same, and only precision or layout could go wrong.
OTHER = Effort(3, (0.6,), False, ("nan", "-1e30"))


def effort_for(own: bool) -> Effort:
    """The effort of this run, for entries as they come or in another dtype or form.

    The light run tries a part of what the full one tries, the very same samples and masks.
    """
    effort = OWN if own else OTHER
    if not is_light():
        return effort
    return effort._replace(thinned=True, garbage=("nan", "inf") if own else effort.garbage)


def effort_of(entry: Entry) -> Effort:
    if entry.asked:
        return effort_for(own=False)._replace(samples=OWN.samples)
    return effort_for(own=entry.of is None and entry.form == "as it comes")


def samples_of(
    entry: Entry, dtype: torch.dtype | None = None, count: int | None = None, looked_at: int = LOOKED_AT
) -> list[Sample]:
    """The samples of the entry's effort; or ``count`` of them, in any run."""
    effort = effort_of(entry)
    if count is not None:
        effort = effort._replace(samples=count, thinned=False, own=False)
    return operator_database.samples_of(entry, effort, dtype, looked_at)
