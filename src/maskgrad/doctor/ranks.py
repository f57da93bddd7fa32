"""One report of several ranks: what all have once, what only some have with their numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch

from maskgrad.doctor.report import Report, identity
from maskgrad.errors import ExaminationError

__all__ = ["exchanged", "united"]

_T = TypeVar("_T")


def united(reports: Mapping[int, Report]) -> Report:
    """The reports of ranks as one; a finding that not all have says in its message who has it."""
    whole = Report()
    for ranks, finding in _shared(reports, lambda report: report.findings, identity):
        whole.findings.append(replace(finding, message=_said(ranks, reports, finding.message)))
    for ranks, note in _shared(reports, lambda report: report.notes, lambda note: note):
        whole.notes.append(replace(note, message=_said(ranks, reports, note.message)))
    for ranks, tried in _shared(reports, lambda report: report.experiments, lambda tried: tried):
        whole.experiments.append(replace(tried, changed=_said(ranks, reports, tried.changed)))
    for report in reports.values():
        whole.padding = {**report.padding, **whole.padding}
        for file, lines in report.trail.items():
            known = whole.trail.setdefault(file, {})
            for line, what in lines.items():
                if known.get(line) != "mixed":
                    known[line] = what
    return whole


def _shared(
    reports: Mapping[int, Report], part: Callable[[Report], list[_T]], same: Callable[[_T], object]
) -> list[tuple[list[int], _T]]:
    """Each part once, as the first rank has it, with the ranks that have it."""
    found: dict[object, tuple[list[int], _T]] = {}
    for rank, report in reports.items():
        for one in part(report):
            ranks, _ = found.setdefault(same(one), ([], one))
            if rank not in ranks:
                ranks.append(rank)
    return list(found.values())


def _said(ranks: list[int], reports: Mapping[int, Report], message: str) -> str:
    if len(ranks) == len(reports):
        return message
    return f"on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {message}"


def exchanged(result: Report | Exception, group: Any) -> Report:
    """The reports of all ranks of a group, united; the error of one is an error of all.

    Raises:
        ExaminationError: another rank could not examine its step. An error of this rank is raised as it is.
    """
    own: Any = result if isinstance(result, Report) else f"{type(result).__name__}: {result}"
    found: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(found, own, group=group)
    if isinstance(result, Exception):
        raise result
    for rank, other in enumerate(found):
        if isinstance(other, str):
            raise ExaminationError(f"step: rank {rank} could not be examined ({other}); mend that rank first")
    return united(dict(enumerate(found)))
