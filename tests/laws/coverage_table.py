"""Writes the table of docs/coverage.md: ``python -m tests.laws.coverage_table``; that the laws hold, the tests say."""

from __future__ import annotations

from collections import Counter

import torch

from maskgrad.semantics.jagged.registry import runs_on
from maskgrad.semantics.refusals import REFUSALS
from tests.laws.any_type.exclusions import OUTSIDE, OUTSIDE_BY_NAME
from tests.laws.any_type.notices import without_notices
from tests.laws.any_type.operator_database import ENTRIES, Entry, differentiable
from tests.laws.status import STATUSES, Status, entries_to_answer_for, status_of
from tests.laws.variants import in_other_dtypes, in_other_forms
from tests.written_out import Region

__all__ = ["PAGE", "statuses", "table"]

PAGE = Region("coverage.md", "coverage table")
COLUMNS = ("operation", "variant", "status", "family", "jagged", "pattern of the result", "gradient")


def statuses() -> dict[str, Status]:
    return {entry.id: status_of(entry) for entry in entries_to_answer_for()}


def table(statuses: dict[str, Status]) -> str:
    """The page: counts, one row for each entry, and what is left out and why."""
    entries = entries_to_answer_for()
    counts = Counter(statuses[entry.id].name for entry in entries)
    singles = sum(statuses[e.id].name == "supported" for e in entries if torch.float32 in e.info.dtypes)
    supported = [entry.operation for entry in entries if statuses[entry.id].name == "supported"]
    jagged = Counter(runs_on(operation) for operation in supported)
    version = torch.__version__.partition("+")[0]
    source = f"the {len(ENTRIES)} entries of the operator database of PyTorch {version}"
    lines = [
        f"Written by `python -m tests.laws.coverage_table` from {source}.",
        "",
        *(f"- **{counts[name]} {name}**: {meaning}." for name, meaning in STATUSES.items() if counts[name]),
        "",
        f"Of those that take float32, {singles} are supported.",
        "On sequences of layout `torch.jagged`, {} run on rows, {} on a Boolean mask, and {} are refused.".format(
            *(jagged[where] for where in ("rows", "Boolean mask", "refused"))
        ),
        *variants(),
        "",
        row(COLUMNS),
        row(["---"] * len(COLUMNS)),
        *(
            row(cells(entry, statuses[entry.id]))
            for entry in sorted(entries, key=lambda entry: entry.id.strip("_"))
        ),
        "",
        "## Refusals",
        "",
        "Each was reviewed by hand: without the unspecified entries, PyTorch's function cannot be called. Where",
        "nothing is missing the result is PyTorch's, if masks can be read: not in graphs, nor under `torch.vmap`.",
        f"Always refused are {always_refused()}.",
        "",
        *(
            f"- {', '.join(names)}: {reason}. {remedy}"
            for (reason, remedy), names in refusals(statuses).items()
        ),
        "",
        "## Excluded entries",
        "",
        f"The other {len(ENTRIES) - len(entries)} entries do not apply to masked tensors:",
        "",
        *(f"- {reason}: {', '.join(names)}." for reason, names in outside().items()),
    ]
    return "\n".join(lines) + "\n"


def cells(entry: Entry, status: Status) -> tuple[str, ...]:
    name, variant = f"`{entry.name}`", entry.variant.replace("_", " ")
    if entry.operation is None or status.name in ("refused", "missing"):
        return name, variant, status.name, "", "", "" if status.name == "refused" else status.reason, ""
    operation = entry.operation
    gradient = operation.gradient if differentiable(entry) else "none"
    return name, variant, status.name, operation.family, runs_on(operation), operation.pattern, gradient


def row(texts: object) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"  # type: ignore[attr-defined]


def refusals(statuses: dict[str, Status]) -> dict[tuple[str, str], list[str]]:
    """Entries by the reason for which they are refused, and the remedy."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, status in sorted(statuses.items()):
        if status.name == "refused":
            found.setdefault((status.reason, status.remedy), []).append(f"`{name}`")
    return found


def always_refused() -> str:
    """Operations that are refused on complete data, too."""
    return ", ".join(f"`{refusal.name}`" for refusal in REFUSALS if not refusal.of_values)


def variants() -> list[str]:
    """How often the laws were applied beyond an entry's own dtype and form."""
    dtypes = Counter(str(entry.dtype).removeprefix("torch.") for entry in in_other_dtypes())
    forms = Counter(entry.form for entry in in_other_forms())
    lists = (
        ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) for counts in (dtypes, forms)
    )
    return [
        "The laws hold in other dtypes too (number of entries): {}; and for operands in other forms: {}.".format(
            *lists
        )
    ]


def outside() -> dict[str, list[str]]:
    """Names (or beginnings of names) by the reason for which they are left out."""
    found: dict[str, list[str]] = {}
    for names in (OUTSIDE, OUTSIDE_BY_NAME):
        for name, reason in names.items():
            found.setdefault(reason, []).append(f"`{name}…`" if name.endswith((".", "_")) else f"`{name}`")
    return found


if __name__ == "__main__":
    with without_notices():
        PAGE.write(table(statuses()))
