"""Losses over the positions that have a target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from benchmarks.case import Case, Comparison
from benchmarks.masked_comparison import (
    FORWARD,
    FORWARD_AND_BACKWARD,
    Formulation,
    masked_comparison,
)
from benchmarks.plan import Family, Point
from benchmarks.samples import random_mask, random_values

__all__ = ["FAMILY"]

NAME = "losses"
Loss = Callable[..., Any]
_ELEMENTWISE: dict[str, Loss] = {
    "mse_loss": F.mse_loss,
    "l1_loss": F.l1_loss,
    "huber_loss": F.huber_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
}


def _elementwise(loss: Loss, target: Tensor) -> Formulation:
    """Values against targets of the same shape."""
    flat = target.reshape(-1).double()
    return Formulation(
        ours=lambda x, mask: loss(mg.masked(x, mask), target),
        where=lambda x, mask: torch.where(mask, loss(x, target, reduction="none"), 0).sum() / mask.sum(),
        indexing=lambda x, mask: loss(x[mask], target[mask]),
        dense=lambda x: loss(x, target),
        deleted=lambda left, mark: loss(left, flat[mark]),
        dims=(0, 1),
    )


def _cross_entropy(target: Tensor, classes: int) -> Formulation:
    """A class for each row of scores; whole rows are unspecified, so a column of the mask says all."""
    loss: Loss = F.cross_entropy
    return Formulation(
        ours=lambda x, mask: loss(x, mg.masked(target, mask[:, 0])),
        where=lambda x, mask: F.cross_entropy(x, torch.where(mask[:, 0], target, -100), ignore_index=-100),
        indexing=lambda x, mask: F.cross_entropy(x[mask[:, 0]], target[mask[:, 0]]),
        dense=lambda x: F.cross_entropy(x, target),
        deleted=lambda left, mark: F.cross_entropy(
            left.reshape(-1, classes), target[mark.reshape(-1, classes)[:, 0]]
        ),
        dims=(0, 1),
    )


def _cases(point: Point) -> Iterator[Case]:
    for name in (*_ELEMENTWISE, "cross_entropy") if point.in_full else ("mse_loss", "cross_entropy"):
        for work in (FORWARD, FORWARD_AND_BACKWARD) if point.in_full else (FORWARD_AND_BACKWARD,):
            yield _case(point, name, work)


def _case(point: Point, name: str, work: str) -> Case:
    shape = (point.size, point.size)

    def prepare() -> Comparison:
        compiles = name in ("mse_loss", "cross_entropy") and point.in_full
        x, mask = random_values(shape, point.dtype), random_mask(shape, point.density)
        if name == "cross_entropy":
            target = torch.randint(point.size, (point.size,), generator=torch.Generator().manual_seed(4))
            tokens = random_mask((point.size,), point.density).unsqueeze(1).expand(shape)
            return masked_comparison(
                _cross_entropy(target, point.size), x, tokens, work, with_compiled=compiles
            )
        answers = random_values(shape, point.dtype, seed=4).sigmoid()
        bytes_moved = 2 * x.numel() * x.element_size() + mask.numel() if work == FORWARD else None
        return masked_comparison(
            _elementwise(_ELEMENTWISE[name], answers), x, mask, work, bytes_moved, with_compiled=compiles
        )

    return Case(NAME, name, work, shape, point.density, point.dtype, prepare)


FAMILY = Family(
    NAME,
    "regression and classification losses over the specified positions",
    size_is="side of a square matrix: samples and outputs, or tokens and classes",
    cases=_cases,
    sizes=(4096, 512),
    quick_size=256,
    densities=(0.5, 0.1, 0.9),
    dtypes=("float32", "bfloat16"),
)
