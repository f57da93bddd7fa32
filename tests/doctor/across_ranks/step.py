"""Steps that are examined on four simulated ranks: with a mistake, and without it; one function for both.

    @step("denominator", "owner/repository#number of a thread in which somebody met it")
    def token_mean(wrong):
        # a docstring: one sentence that says what goes wrong
        model, batch = nn.Linear(4, 1), tokens()

        def step(batch):
            ...
            return losses.sum() / count  # wrong

        return step, batch

The comment ``# wrong`` is on the line that must be named.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskgrad import doctor

__all__ = ["STEPS", "Step", "labelled", "samples", "step", "tokens"]


@dataclass(frozen=True)
class Step:
    """A step with a mistake, and without it; ``kind`` of the finding, or "" if only the right one is there."""

    made: Callable[[bool], tuple[Callable[[Any], Any], Any]]
    kind: str
    thread: str

    @property
    def name(self) -> str:
        return self.made.__name__

    @property
    def title(self) -> str:
        return inspect.getdoc(self.made) or ""

    @property
    def marked(self) -> list[int]:
        """The numbers of the lines that may be named."""
        lines, first = inspect.getsourcelines(self.made)
        return [first + n for n, line in enumerate(lines) if line.rstrip().endswith("# wrong")]

    def examined(self, wrong: bool, ranks: int = 4) -> doctor.Report:
        torch.default_generator.manual_seed(0)
        step, batch = self.made(wrong)
        return doctor.examine(step, batch, ranks=ranks, experiments=["ranks"])


STEPS: list[Step] = []


def step(kind: str, thread: str = "not looked for") -> Any:
    """Add a step to the table."""

    def add(made: Any) -> Any:
        STEPS.append(Step(made, kind, thread))
        return made

    return add


LENGTHS = (7, 3, 5, 1, 6, 2, 4, 5)


def tokens(lengths: tuple[int, ...] = LENGTHS, features: int = 4) -> dict[str, Tensor]:
    """Samples of different lengths, with targets."""
    shape = len(lengths), max(lengths)
    mask = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    return {"x": torch.randn(*shape, features), "y": torch.randn(shape), "mask": mask}


def labelled(lengths: tuple[int, ...] = LENGTHS, classes: int = 5) -> dict[str, Tensor]:
    """Samples of different lengths, with labels; the rest of them is ignored."""
    made = tokens(lengths)
    labels = torch.randint(classes, made["y"].shape)
    return {"x": made["x"], "labels": labels.masked_fill(~made["mask"], -100)}


def samples(count: int = 8, features: int = 4) -> dict[str, Tensor]:
    """Samples without padding."""
    return {"x": torch.randn(count, features), "y": torch.randn(count)}
