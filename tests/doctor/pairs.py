"""The corpus: programs with a mistake beside the same programs fixed, one function a pair in ``corpus/``.

    @pair("padding-leak", "owner/repository#number")
    def mean_over_padding(wrong):
        # a docstring: one sentence that says what goes wrong
        head, batch = nn.Linear(4, 1), {"x": torch.randn(3, 5, 4), "mask": lasting(5, 3, 2)}

        def step(batch):
            pooled = batch["x"].mean(1) if wrong else ...  # leak
            return head(pooled).square().sum()

        return Case(step, batch, padding={"x": "mask"})

It is plain PyTorch. ``step`` returns the loss; the comment ``# leak`` is on the line that must be named.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from maskgrad import doctor
from maskgrad.errors import ExaminationError

__all__ = ["Case", "Outcome", "Pair", "described", "diagnose", "lasting", "marked", "pair", "pairs"]

_PAIRS: list[Pair] = []


@dataclass
class Case:
    """One program, wrong or fixed; ``padding`` and ``documents`` where they cannot be recognised."""

    step: Callable[[Any], Any]
    batch: Any
    padding: Any = None
    documents: Any = None
    model: nn.Module | None = None
    causal: bool = False
    ranks: int | None = None
    experiments: list[str] | None = None


@dataclass(frozen=True)
class Pair:
    """A program with a mistake, and without it.

    Attributes:
        made: makes the program, wrong or fixed.
        kind: the kind of finding that is expected, one of ``maskgrad.doctor``'s; "" if only the right one is there.
        thread: where somebody met it, or ``none found; `` and what was looked for.
        module: what is named by kinds of findings that name no line.
    """

    made: Callable[[bool], Case]
    kind: str
    thread: str
    module: str | None = None

    @property
    def name(self) -> str:
        return self.made.__name__

    @property
    def title(self) -> str:
        return inspect.getdoc(self.made) or ""

    def examined(self, wrong: bool) -> doctor.Report:
        """With the same parameters every time."""
        torch.default_generator.manual_seed(0)
        return doctor.examine(**vars(self.made(wrong)))


class Outcome(NamedTuple):
    """What the doctor says of both programs of a pair."""

    verdict: str
    named: list[str]
    alarms: list[str]


def pair(kind: str, thread: str, module: str | None = None) -> Any:
    """Add a pair to the corpus."""

    def add(made: Callable[[bool], Case]) -> Callable[[bool], Case]:
        _PAIRS.append(Pair(made, kind, thread, module))
        return made

    return add


def pairs() -> list[Pair]:
    import tests.doctor.corpus  # noqa: F401

    return sorted(_PAIRS, key=lambda pair: pair.name)


def marked(made: Callable[..., Any]) -> list[tuple[str, int]]:
    """The file and the numbers of a function's lines that may be named."""
    made = inspect.unwrap(made)
    lines, first = inspect.getsourcelines(made)
    numbers = (first + n for n, line in enumerate(lines) if line.rstrip().endswith("# leak"))
    return [(inspect.getfile(made), number) for number in numbers]


def lasting(*lengths: int) -> Tensor:
    """The mask of rows of these lengths, (B, T), True = real."""
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def diagnose(pair: Pair) -> Outcome:
    try:
        wrong, fixed = (pair.examined(wrong).findings for wrong in (True, False))
    except ExaminationError as error:
        return Outcome("missed", [f"refused: {error}"], [])
    of_kind, lines = [finding for finding in wrong if finding.kind == pair.kind], marked(pair.made)
    if pair.module:
        at_the_line = any(pair.module in (each.module or "") for each in of_kind)
    else:
        at_the_line = any((each.file, each.line) in lines for each in of_kind[:1])
    found = f"found at {'its' if at_the_line else 'another'} line"
    return Outcome(found if of_kind else "missed", list(map(described, wrong)), list(map(described, fixed)))


def described(finding: doctor.Finding) -> str:
    where = f"{Path(finding.file).name}:{finding.line}" if finding.file else finding.module
    return f"{finding.kind} at {where}"
