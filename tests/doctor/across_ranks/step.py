"""Steps that are examined on four simulated ranks: pairs as in ``tests/doctor/pairs.py``, one function for both.

@step("denominator", "owner/repository#number of a thread in which somebody met it")
def token_mean(wrong):
    # a docstring: one sentence that says what goes wrong
    model, batch = nn.Linear(4, 1), tokens()

    def step(batch):
        ...
        return losses.sum() / count  # leak

    return step, batch
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from tests.doctor.pairs import Case, Pair, lasting

__all__ = ["STEPS", "labelled", "samples", "step", "tokens"]

STEPS: list[Pair] = []


def step(kind: str, thread: str = "not looked for") -> Any:
    """Add a step to the table; ``kind`` of the finding, or "" if only the right one is there."""

    def add(made: Any) -> Any:
        case = functools.wraps(made)(lambda wrong: Case(*made(wrong), ranks=4, experiments=["ranks"]))
        STEPS.append(Pair(case, kind, thread))
        return made

    return add


LENGTHS = (7, 3, 5, 1, 6, 2, 4, 5)


def tokens(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Tensor]:
    """Samples of different lengths, with targets."""
    mask = lasting(*lengths)
    return {"x": torch.randn(*mask.shape, 4), "y": torch.randn(mask.shape), "mask": mask}


def labelled(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Tensor]:
    """Samples of different lengths, with labels; the rest of them is ignored."""
    made = tokens(lengths)
    labels = torch.randint(5, made["y"].shape)
    return {"x": made["x"], "labels": labels.masked_fill(~made["mask"], -100)}


def samples(count: int = 8) -> dict[str, Tensor]:
    """Samples without padding."""
    return {"x": torch.randn(count, 4), "y": torch.randn(count)}
