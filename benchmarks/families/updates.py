"""Steps of an optimizer on rows of an embedding that occur several times, alone and with lookup and gradient.

Each contender has parameters and state of its own, and two batches in turn: a step meets other rows than the last.
After the first step its rows are compared with the formula of the rule in float64, and rows without a gradient with
what the meaning of a missing gradient asks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import maskgrad as mg
from benchmarks.case import OURS, Case, Comparison, Implementation, LeftOutError
from benchmarks.families import fbgemm_tables
from benchmarks.families.coalescing import repeated
from benchmarks.plan import Family, Point

__all__ = ["FAMILY"]

NAME = "updates"
TABLE, WIDTH = 1_000_000, 64
#: of few rows
WIDTHS = {64: 16, 512: 32}
STEP, WHOLE = "step", "lookup + backward + step"
LR, DECAY = 0.1, 0.01
#: rows of which some get no gradient, looked at after the first step
WATCHED = 1000

Optimizer = Callable[..., torch.optim.Optimizer]


@dataclass(frozen=True)
class Rule:
    """An optimizer: maskgrad's name and options, its peers, and its first step."""

    ours: str
    first_step: Callable[[Tensor, Tensor], Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    sparse: Optimizer | None = None
    dense: Optimizer | None = None
    fbgemm: str | None = None
    #: what the first step does to rows without a gradient: maskgrad's meaning, and the dense optimizer's
    idle: float = 1.0
    idle_dense: float = 1.0


def _adam(p: Tensor, g: Tensor) -> Tensor:
    return p - LR * g / (g.abs() + 1e-8)


def _adamw(p: Tensor, g: Tensor) -> Tensor:
    return _adam(p * (1 - LR * DECAY), g)


_RULES = {
    "SGD": Rule("SGD", lambda p, g: p - LR * g, {}, torch.optim.SGD, torch.optim.SGD, "EXACT_SGD"),
    "Adagrad": Rule(
        "Adagrad",
        lambda p, g: p - LR * g / (g.abs() + 1e-10),
        {},
        torch.optim.Adagrad,
        torch.optim.Adagrad,
        "EXACT_ADAGRAD",
    ),
    "Adagrad row-wise": Rule(
        "Adagrad",
        lambda p, g: p - LR * g / (g.square().mean(1, keepdim=True).sqrt() + 1e-10),
        {"state": "row"},
        fbgemm="EXACT_ROWWISE_ADAGRAD",
    ),
    "RMSprop": Rule("RMSprop", lambda p, g: p - LR * g / (0.1 * g.abs() + 1e-8), dense=torch.optim.RMSprop),
    "Adam": Rule("Adam", _adam, {}, torch.optim.SparseAdam, torch.optim.Adam),
    "AdamW skip": Rule(
        "AdamW",
        _adamw,
        {"unspecified": "skip", "weight_decay": DECAY},
        dense=torch.optim.AdamW,
        idle_dense=1 - LR * DECAY,
    ),
    "AdamW zero": Rule(
        "AdamW",
        _adamw,
        {"unspecified": "zero", "weight_decay": DECAY},
        dense=torch.optim.AdamW,
        idle=1 - LR * DECAY,
        idle_dense=1 - LR * DECAY,
    ),
}
#: at other sizes than the anchor
_REPRESENTATIVES = ("SGD", "Adagrad", "Adam", "AdamW zero")
#: the dense optimizer takes as long whatever the number of rows; beyond this it only costs time
_LARGEST_BESIDE_DENSE = 100_000


def _cases(point: Point) -> Iterator[Case]:
    for name in _RULES if point.in_full else _REPRESENTATIVES:
        for work in (STEP, WHOLE):
            if work == STEP and _RULES[name].sparse is _RULES[name].dense is None:
                continue  # FBGEMM has no step of its own, and there is nobody else to compare with
            yield _case(point.size, name, work, "each twice")
    if point.in_full:
        yield _case(point.size, "Adagrad", STEP, "power law")
        yield _case(point.size, "Adagrad", WHOLE, "power law")


def _case(rows: int, name: str, work: str, pattern: str) -> Case:
    def prepare() -> Comparison:
        return _contest(_RULES[name], rows, work, pattern)

    return Case(
        NAME,
        name,
        work,
        (TABLE, WIDTHS.get(rows, WIDTH)),
        None,
        "float32",
        prepare,
        f"{rows} rows, {pattern}",
    )


@dataclass(frozen=True)
class _Batch:
    ids: Tensor
    #: the gradient of the rows that were looked up
    arriving: Tensor

    def gradient(self) -> Tensor:
        """As the backward pass of an embedding leaves it: sparse, duplicates not merged."""
        size = (TABLE, self.arriving.shape[1])
        return torch.sparse_coo_tensor(self.ids[None], self.arriving, size, check_invariants=False)


_shared: dict[int, Tensor] = {}


def _start(width: int) -> Tensor:
    """The table that all begin with; making it takes a second, so it is kept while the family runs."""
    if width not in _shared:
        _shared.clear()
        _shared[width] = torch.randn(TABLE, width, generator=torch.Generator().manual_seed(9))
    return _shared[width]


def _contest(rule: Rule, rows: int, work: str, pattern: str) -> Comparison:
    _require(rule)
    ids = repeated(rows, pattern)
    # of one sign: a sum that almost cancels would be divided by its own rounding error
    width = WIDTHS.get(rows, WIDTH)
    arriving = torch.rand(rows, width, generator=torch.Generator().manual_seed(10)) + 0.5
    # two batches in turn, in different parts of the table
    batches = [_Batch(ids, arriving), _Batch((ids + TABLE // 2) % TABLE, arriving.flip(0))]
    start, first = _start(width), batches[0]
    touched, place = torch.unique(first.ids, return_inverse=True)
    merged = torch.zeros(len(touched), width, dtype=torch.float64)
    merged.index_add_(0, place, first.arriving.double())
    expected = rule.first_step(start[touched].double(), merged)
    idle = torch.arange(0, TABLE, TABLE // WATCHED)
    idle = idle[~torch.isin(idle, touched)]

    def verify(found: tuple[Tensor, Tensor, float]) -> None:
        moved, still, factor = found
        _same(moved, expected, "rows with a gradient")
        _same(still, start[idle].double() * factor, "rows without a gradient")

    ours = getattr(mg.optim, rule.ours)

    def contender(make: Optimizer, is_dense: bool, factor: float, options: dict[str, Any]) -> Implementation:
        kind = mg.nn.Embedding if make is ours else nn.Embedding
        table = kind.from_pretrained(start.clone(), freeze=False, sparse=not is_dense)
        parameter = table.weight
        optimizer = make([parameter], lr=LR, **options)
        if work == STEP:
            call = _stepping(parameter, optimizer, batches, is_dense)
        else:
            call = _training(table, optimizer, batches)

        def read(_: Any) -> tuple[Tensor, Tensor, float]:
            getattr(optimizer, "flush", lambda: None)()
            return parameter.detach()[touched], parameter.detach()[idle], factor

        return Implementation(call, read)

    contenders = {OURS: lambda: contender(ours, False, rule.idle, rule.options)}
    sparse, dense, fbgemm = rule.sparse, rule.dense, rule.fbgemm
    if sparse is not None:
        contenders["torch.optim"] = lambda: contender(sparse, False, rule.idle, {})
    if dense is not None and rows <= _LARGEST_BESIDE_DENSE and (work == WHOLE or sparse is None):
        decay = {"weight_decay": DECAY} if "weight_decay" in rule.options else {}
        contenders["torch.optim-dense"] = lambda: contender(dense, True, rule.idle_dense, decay)
    if fbgemm is not None and work == WHOLE:

        def fbgemm_table() -> Implementation:
            found, weights = fbgemm_tables.table(start, fbgemm, LR)
            steps = itertools.cycle([fbgemm_tables.step(found, b.ids, b.arriving) for b in batches])

            def train() -> None:
                next(steps)()

            return Implementation(train, lambda _: (weights[touched].clone(), weights[idle].clone(), 1.0))

        contenders["fbgemm"] = fbgemm_table
    return Comparison(
        contenders, verify, agree=lambda ours, theirs: _same(theirs[0], ours[0], "rows with a gradient")
    )


def _same(found: Tensor, expected: Tensor, what: str) -> None:
    """Closer than a decay of one step, which is a thousandth, would let them be."""
    torch.testing.assert_close(
        found.double(), expected.double(), rtol=2e-5, atol=1e-5, msg=lambda text: f"{what}: {text.strip()}"
    )


def _require(rule: Rule) -> None:
    """That maskgrad has the optimizer with these options.

    Raises:
        LeftOutError: it has not.
    """
    kind = getattr(mg.optim, rule.ours, None)
    if kind is None:
        raise LeftOutError(f"this version of maskgrad has no {rule.ours}")
    try:
        kind([nn.Parameter(torch.zeros(2, 2))], lr=LR, **rule.options)
    except ValueError as error:
        raise LeftOutError(str(error)) from None


def _stepping(
    parameter: Tensor, optimizer: torch.optim.Optimizer, batches: list[_Batch], is_dense: bool
) -> Callable[[], None]:
    """The step alone: the gradient lies ready."""
    ready = [batch.gradient() for batch in batches]
    if is_dense:
        ready = [gradient.to_dense() for gradient in ready]
    gradients = itertools.cycle(ready)

    def step() -> None:
        parameter.grad = next(gradients)
        optimizer.step()

    return step


def _training(
    table: nn.Embedding, optimizer: torch.optim.Optimizer, batches: list[_Batch]
) -> Callable[[], None]:
    """Look up, go back with a gradient that lies ready, step."""
    turns = itertools.cycle(batches)

    def train() -> None:
        batch = next(turns)
        optimizer.zero_grad()
        table(batch.ids).backward(batch.arriving)
        optimizer.step()

    return train


FAMILY = Family(
    NAME,
    f"optimizers on some rows of a table of {TABLE:,}",
    size_is="rows that get a gradient, duplicates counted",
    cases=_cases,
    sizes=(65_536, 64, 512, 4_096, 262_144),
    quick_size=4_096,
    forget=_shared.clear,
)
