"""What was hoped for, as data; rows that a goal speaks of are marked as met or not.

The goals were set for two cores, float32, and matrices of 4096 x 4096 entries of which half are specified, where a goal
does not say otherwise. Single operations on tensors of less than 65,536 entries have none, but for one mean: they cost
what their few calls of PyTorch cost. Whole training steps decide (``make steps``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from benchmarks.results import Row

__all__ = ["GOALS", "Goal", "judged"]

_RELATIONS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}
#: what a goal bounds: how it is computed from a row of the peer, and how it is written
_QUANTITIES: dict[str, tuple[Callable[[Row], float], str]] = {
    "speed": (lambda row: row.ratio, "times as fast as {peer}"),
    "cost": (lambda row: 1 / row.ratio, "times the time of {peer}"),
    "memory": (lambda row: 1 / row.memory if row.memory else float("nan"), "times the memory of {peer}"),
}


@dataclass(frozen=True)
class Goal:
    """``quantity`` of maskgrad beside ``peer`` shall be ``>= bound`` or ``<= bound``, in all rows that match.

    Names may hold the wildcards of :mod:`fnmatch`; ``[*]`` is a star.
    """

    family: str
    operation: str
    peer: str
    relation: str
    bound: float
    quantity: str = "speed"
    work: str = "forward"
    shape: str = "4096x4096"
    density: float | None = 0.5
    dtype: str = "float32"
    note: str = "*"

    def concerns(self, row: Row) -> bool:
        """Whether ``row`` is one of those that the goal speaks of."""
        names = ((self.family, row.family), (self.operation, row.operation), (self.work, row.work))
        others = ((self.shape, row.shape), (self.dtype, row.dtype), (self.note, row.note))
        return (
            self.peer == row.peer
            and (self.density is None or self.density == row.density)
            and all(fnmatchcase(name, pattern) for pattern, name in (*names, *others))
        )

    def value(self, row: Row) -> float:
        """The quantity in ``row``."""
        return _QUANTITIES[self.quantity][0](row)

    def is_met(self, row: Row) -> bool:
        """Whether ``row`` reaches the goal."""
        return _RELATIONS[self.relation](self.value(row), self.bound)

    def worst(self, rows: Iterable[Row]) -> Row:
        """The row that is furthest from the goal."""
        return (min if self.relation == ">=" else max)(rows, key=self.value)

    @property
    def words(self) -> str:
        """What the goal asks, ``"at least 20 times as fast as torch.masked"``."""
        bound = "at least" if self.relation == ">=" else "at most"
        return f"{bound} {self.bound:.3g} {_QUANTITIES[self.quantity][1].format(peer=self.peer)}"


_MASKED = "torch.masked"
_TABLE = "1000000x64"
_MILLION = "1000000 entries*"
#: whole models beside masking by hand
_MODELS = {
    "two encoder layers": 0.95,
    "Bert": 0.9,
    "Bert, compiled": 0.95,
    "MLP": 0.8,
    "two convolutions": 0.8,
    "linear, mean over time": 0.75,
    "LSTM": 2.5,
}
#: the same on jagged batches, of which 65 of 100 positions are real, beside padded ones
_RAGGED = {
    "two encoder layers|16x128x128": 1.5,
    "two encoder layers|8x512x256": 1.6,
    "feed-forward block|*": 1.4,
    "linear, mean over time|*": 1.3,
    "Bert|*": 1.3,
}
#: steps on 64, 512, 4,096, 65,536 and 262,144 rows
_STEPS = {"SGD": (0.5, 0.95, 0.95, 0.95, 0.95), "Adagrad": (1, 1, 3, 5, 8), "Adam": (1, 1, 4, 7, 10)}

GOALS: tuple[Goal, ...] = (
    Goal("reductions", "mean(1)", _MASKED, ">=", 20, note=""),
    Goal("reductions", "mean(0)", _MASKED, ">=", 15, note=""),
    Goal("reductions", "mean()", _MASKED, ">=", 20, note=""),
    Goal("reductions", "mean(*)", "dense", "<=", 3, "cost", note=""),
    Goal("reductions", "var(1)", _MASKED, ">=", 20),
    Goal("reductions", "logsumexp(1)", _MASKED, ">=", 6),
    Goal("reductions", "mean(1)", _MASKED, ">=", 3, work="forward + backward"),
    Goal("reductions", "MaskedTensor.mean(1)", _MASKED, ">=", 25),
    Goal("softmax", "softmax(1)", _MASKED, ">=", 2.5),
    Goal("softmax", "softmax(1)", _MASKED, ">=", 2, work="forward + backward"),
    Goal("small", "mean(1)", _MASKED, ">=", 1.5, shape="32x8"),
    Goal("coalescing", "merge rows", "torch.sparse", ">=", 3, shape=_TABLE, density=None, note="65536 rows*"),
    Goal(
        "coalescing", "merge rows", "torch.sparse", ">=", 3, shape=_TABLE, density=None, note="262144 rows*"
    ),
    Goal("coalescing", "merge entries", "torch.sparse", ">=", 3, shape="*", density=None, note="500000 *"),
    Goal("coalescing", "merge entries", "scipy", ">=", 1, shape="*", density=None, note="500000 *"),
    Goal("storage", "*", "bare-values", "<=", 1.2, "cost", shape="*", density=None, note=_MILLION),
    Goal("storage", "mean(1)", "torch.sparse", ">=", 5, shape="*", density=None, note=_MILLION),
    Goal("storage", "mean(1)", "torch.sparse-csr", ">=", 5, shape="*", density=None, note=_MILLION),
    Goal("storage", "softmax(1)", "torch.sparse", ">=", 5, shape="*", density=None, note=_MILLION),
    Goal("storage", "*", _MASKED, ">=", 20, density=0.01),
    Goal("storage", "*", "maskgrad, Boolean mask", ">=", 20, density=0.01),
    *(
        Goal(
            "updates",
            name,
            "torch.optim",
            ">=",
            bound,
            work="step",
            shape="*",
            density=None,
            note=f"{rows} rows*",
        )
        for name, bounds in _STEPS.items()
        for rows, bound in zip((64, 512, 4096, 65536, 262144), bounds, strict=True)
    ),
    *(
        Goal("steps", "*", f"torch.optim-{way}", ">=", 0.95, work="step", shape="*", density=None)
        for way in ("fused", "foreach", "single")
    ),
    *(
        Goal("models", name, "by-hand", ">=", bound, work="*", shape="*", density=None)
        for name, bound in _MODELS.items()
    ),
    *(
        Goal("ragged", name, "by-hand", ">=", bound, work="*", shape=shape, density=0.65, note="")
        for (name, _, shape), bound in ((key.partition("|"), bound) for key, bound in _RAGGED.items())
    ),
    Goal("ragged", "*", "by-hand", ">=", 0.95, work="*", shape="*", density=1.0, note=""),
    Goal("updates", "Adagrad", "torch.optim", ">=", 4, work="lookup*", shape=_TABLE, density=None),
    Goal("updates", "Adagrad", "fbgemm", ">=", 2, work="lookup*", shape=_TABLE, density=None),
    Goal(
        "updates",
        "AdamW zero",
        "torch.optim-dense",
        ">=",
        50,
        work="step",
        shape=_TABLE,
        density=None,
        note="4096 rows*",
    ),
    Goal("batched", "*", "is-grads-batched", ">=", 1, work="*", shape="256x*", density=None, note="16 *"),
    Goal("batched", "*", "vmap-jacrev", ">=", 0.8, work="*", shape="256x*", density=None, note="16 *"),
    Goal("per_sample", "*", "vmap-grad", ">=", 1, work="*", shape="*", density=None),
    Goal("per_sample", "*", "opacus", ">=", 1, work="*", shape="*", density=None),
    *(
        Goal("doctor", "*", "plain-step", "<=", bound, quantity, work="quick", shape="*", density=0.7)
        for quantity, bound in (("cost", 8), ("memory", 2))
    ),
    Goal("denominators", "8 micro-batches", "by-hand", ">=", 0.98, work="*", shape="*"),
)


def judged(rows: Iterable[Row], goals: Iterable[Goal] = GOALS) -> list[Row]:
    """``rows``, those that a goal speaks of with the goal and whether it is met; of several goals the first counts."""
    found = []
    for row in rows:
        goal = next((goal for goal in goals if goal.concerns(row)), None)
        found.append(row if goal is None else replace(row, goal=goal.words, met=goal.is_met(row)))
    return found
