"""Functions on tensors of 32 by 8 entries: the cheap path must not be slower than torch.masked."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.case import Case, Comparison
from benchmarks.families import reductions, softmax
from benchmarks.masked_comparison import FORWARD, FORWARD_AND_BACKWARD, masked_comparison
from benchmarks.plan import Family, Point
from benchmarks.samples import random_mask, random_values

__all__ = ["FAMILY"]

NAME = "small"
COLUMNS = 8
_REDUCTIONS = ("sum", "mean", "prod", "amax", "argmax", "norm", "var", "std", "logsumexp")
_DIFFERENTIATED = ("sum", "mean", "var", "amax", "logsumexp")
_SOFTMAX = ("softmax", "log_softmax")


def _cases(point: Point) -> Iterator[Case]:
    if not point.in_full:
        yield _case(point, "mean", FORWARD)
        yield _case(point, "softmax", FORWARD)
        return
    for name in (*_REDUCTIONS, *_SOFTMAX):
        yield _case(point, name, FORWARD)
    for name in (*_DIFFERENTIATED, *_SOFTMAX):
        yield _case(point, name, FORWARD_AND_BACKWARD)


def _case(point: Point, name: str, work: str) -> Case:
    shape = (point.size, COLUMNS)

    def prepare() -> Comparison:
        said = softmax.formulation(name, 1) if name in _SOFTMAX else reductions.formulation(name, (1,))
        return masked_comparison(
            said, random_values(shape, point.dtype), random_mask(shape, point.density, (1,)), work
        )

    return Case(NAME, f"{name}(1)", work, shape, point.density, point.dtype, prepare)


FAMILY = Family(
    NAME,
    "reductions and softmax on small tensors",
    size_is=f"rows of {COLUMNS} entries",
    cases=_cases,
    sizes=(32,),
    quick_size=32,
    densities=(0.5,),
    dtypes=("float32", "float64", "bfloat16", "float16"),
)
