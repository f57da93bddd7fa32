"""Programs of views and writes, against PyTorch on plain values.

In these steps an entry depends on entries, one by one. So an entry is specified where NaN, put at the unspecified
entries of the leaves, does not arrive; what is specified has the value that PyTorch gives on plain tensors, and the
gradient that PyTorch gives of the specified entries alone.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import torch
from torch import Tensor

from tests.random_programs.drawing import draw
from tests.random_programs.runs import (
    ASK_FOR_A_COPY,
    PLAIN,
    Failure,
    Operands,
    Run,
    close,
    filled,
    garbled,
    mask_of,
    run,
    spread,
)
from tests.random_programs.steps import TRANSPARENT, Program, Step, apply

__all__ = ["check_writes", "draw_writes"]

KINDS = (*("view",) * 3, *("assignment",) * 4, "unary", "binary", "write", "write", "other")
#: A detached name is written without the graph's knowledge.
STEPS = (TRANSPARENT | {"remove"}) - {"detach"}

#: Masks of which several entries share one Boolean, and what PyTorch refuses of expanded values.
REFUSED = (*ASK_FOR_A_COPY, "share one Boolean", "would not see it")


def draw_writes(seed: int) -> Program:
    """A program of views and writes."""
    return draw(seed, dtypes=(torch.float64,), kinds=KINDS, steps=STEPS)


def check_writes(program: Program) -> str:
    """Compare masks, values and gradients of a program; whether PyTorch trains on it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = run(program, PLAIN)
        if plain.refusal or not program.steps:
            return "refused"
        travelled = run(
            replace(program, steps=[removed(step) for step in program.steps]),
            Operands(lambda leaf, mask: torch.where(mask, leaf, math.nan), PLAIN.wrap),
        )
        masks = [~variable.isnan() for variable in travelled.variables]
        gradients = gradients_of_specified(program, masks)
        for garbage in (0.0, math.nan):
            found = run(program, garbled(garbage))
            if any(words in found.refusal for words in REFUSED):
                return "refused"
            if found.refusal:
                raise Failure(f"{program}\n{garbage} under the mask: {found.refusal}, and PyTorch trains")
            compare(program, found, Run(plain.variables, gradients), masks)
    return "trained"


def removed(step: Step) -> Step:
    """What is removed is NaN from then on."""
    return replace(step, parameters=(step.parameters[0], math.nan)) if step.name == "remove" else step


def gradients_of_specified(program: Program, masks: list[Tensor]) -> list[Tensor | None]:
    """PyTorch's, of the entries of plain variables that are specified."""
    leaves = [leaf.clone().requires_grad_() for leaf in program.leaves]
    variables = [*leaves, *(leaf.clone() for leaf in leaves)]
    for step in program.steps:
        variables += apply(step, variables)
    parts = [torch.where(mask, v, 0) for mask, v in zip(masks, variables, strict=True)]
    parts = [part for part in parts if part.requires_grad]
    return list(torch.autograd.grad(parts, leaves, [spread(part) for part in parts], allow_unused=True))


def compare(program: Program, found: Run, expected: Run, masks: list[Tensor]) -> None:
    for i, (variable, plain, mask) in enumerate(zip(found.variables, expected.variables, masks, strict=True)):
        if not torch.equal(mask_of(variable), mask):
            raise Failure(f"{program}\nmask of v{i} is {mask_of(variable).tolist()}, not {mask.tolist()}")
        close(program, [filled(variable), torch.where(mask, plain, 0)], f"v{i}")
    for i, (one, other) in enumerate(zip(found.gradients, expected.gradients, strict=True)):
        pair = [torch.zeros_like(program.leaves[i]) if g is None else g for g in (one, other)]
        close(program, pair, f"gradient of leaf {i}")
