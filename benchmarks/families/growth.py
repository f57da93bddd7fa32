"""How time grows with the number of entries, from a thousand to a hundred millions."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.case import Case, Comparison
from benchmarks.families import elementwise, reductions, softmax
from benchmarks.masked_comparison import FORWARD, FORWARD_AND_BACKWARD, masked_comparison
from benchmarks.plan import Family, Point
from benchmarks.samples import random_mask, random_values

__all__ = ["FAMILY"]

NAME = "growth"
COLUMNS = 1000
#: operations that write as much as they read; at a hundred million entries their peers would take the time of all else
_LARGEST_IN_FULL = 20_000_000


def _cases(point: Point) -> Iterator[Case]:
    yield _case(point, "mean(1)", FORWARD)
    yield _case(point, "softmax(1)", FORWARD)
    if point.size <= _LARGEST_IN_FULL:
        yield _case(point, "mean(1)", FORWARD_AND_BACKWARD)
        yield _case(point, "a * a", FORWARD)


def _case(point: Point, name: str, work: str) -> Case:
    shape = (max(point.size // COLUMNS, 1), min(COLUMNS, point.size))

    def prepare() -> Comparison:
        x, mask = random_values(shape, point.dtype), random_mask(shape, point.density, (1,))
        if name == "a * a":
            contest = elementwise.ready_made(name, x, mask)
            kept = {peer: make for peer, make in contest.contenders.items() if peer != "memory-copy"}
            return Comparison(kept, contest.verify, contest.agree)
        said = (
            softmax.formulation("softmax", 1)
            if name == "softmax(1)"
            else reductions.formulation("mean", (1,))
        )
        return masked_comparison(said, x, mask, work)

    return Case(NAME, name, work, shape, point.density, point.dtype, prepare)


FAMILY = Family(
    NAME,
    "time over the number of entries",
    size_is=f"entries, in rows of {COLUMNS}",
    cases=_cases,
    sizes=(1_000_000, 1_000, 10_000, 100_000, 10_000_000, 100_000_000),
    quick_size=10_000,
    densities=(0.5,),
)
