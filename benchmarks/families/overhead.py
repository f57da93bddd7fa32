"""What a call costs beyond PyTorch's own, on tensors so small that nothing else counts."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.case import Case, Comparison
from benchmarks.families.elementwise import OPERATIONS, ready_made
from benchmarks.masked_comparison import FORWARD
from benchmarks.plan import Family, Point
from benchmarks.samples import random_mask, random_values

__all__ = ["FAMILY"]

NAME = "overhead"
COLUMNS = 8


def _cases(point: Point) -> Iterator[Case]:
    for name in OPERATIONS:
        yield _case(point, name)


def _case(point: Point, name: str) -> Case:
    shape = (point.size, COLUMNS)

    def prepare() -> Comparison:
        contest = ready_made(name, random_values(shape, point.dtype), random_mask(shape, point.density))
        kept = {peer: make for peer, make in contest.contenders.items() if peer != "memory-copy"}
        return Comparison(kept, contest.verify, contest.agree)

    return Case(NAME, name, FORWARD, shape, point.density, point.dtype, prepare)


FAMILY = Family(
    NAME,
    "microseconds above the plain torch call",
    size_is=f"rows of {COLUMNS} entries",
    cases=_cases,
    sizes=(32,),
    quick_size=32,
    densities=(0.5,),
)
