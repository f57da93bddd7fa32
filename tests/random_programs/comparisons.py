"""What must not tell two runs of a program apart."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from tests.random_programs.drawing import draw
from tests.random_programs.runs import (
    STALE,
    Failure,
    Run,
    filled,
    garbled,
    mask_of,
    run,
    same,
    spread,
    stored,
)
from tests.random_programs.steps import BINARY, IN_PLACE, UNARY, WITH_OTHER, WRITES, Program, apply

__all__ = ["check"]

GARBAGE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "huge": 1e38}
#: What an unspecified entry and a NaN do alike.
TRANSPARENT = {
    *UNARY, *BINARY, *IN_PLACE, *WITH_OTHER, "setitem", "masked_fill_", "view and write", "out", "transpose", "reshape",
    "view", "index", "unsqueeze", "squeeze", "chunk", "unbind", "expand", "diagonal", "cat", "stack", "flip",
} - {"lt", "eq", "sign"}  # fmt: skip
LAYOUTS = ("coo", "rows", "csr", "csc")
#: What makes one rounding of a half a difference of 1.
JUMPS = {"sign", "lt", "eq", "argmax", "where"}


def check(seed: int) -> str:
    """Draw a program and compare its runs; the kinds of comparison that were made."""
    program = draw(seed)
    if not program.steps:
        return "empty"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full = run(program, lambda leaf, mask: mg.masked(leaf.clone(), torch.ones_like(mask)))
        plain = run(program, lambda leaf, _: leaf.clone())
        # zeros in memory that several entries share: allowed in PyTorch, refused here
        known = full.refusal in ("", STALE, plain.refusal) or "clone() the tensor" in full.refusal
        both_stale = full.refusal.startswith(STALE) and plain.refusal.startswith(STALE)
        if not known and not both_stale:
            raise Failure(f"{program}\nrefused, and PyTorch runs it: {full.refusal}")
        if "clone() the tensor" in full.refusal + plain.refusal:
            return "refused"
        stale = bool(full.refusal or plain.refusal)
        same(program, *as_far_as_comparable(program, full, plain), "everything specified", not stale)
        first = run(program, garbled(0.0))
        for name in ("nan", random.Random(seed).choice(("inf", "-inf", "huge"))):
            other = run(program, garbled(GARBAGE[name]))
            # What a look finds harmless is kept for the backward pass as it is, and must not be written to, as in
            # PyTorch; what is not harmless is replaced first.
            told = STALE not in (first.refusal, other.refusal) or first.refusal == other.refusal
            same(program, other, first, f"{name} under the mask", told)
        unseen = any(
            step.name == "detach" for step in program.steps
        )  # autograd is not told of what is written there
        for leaf_mask, gradient in zip(program.masks, () if unseen else first.gradients, strict=False):
            if gradient is not None and gradient[~leaf_mask].count_nonzero():
                raise Failure(f"{program}\nan unspecified entry has a gradient")
        if not stale and not first.refusal:
            for how, every in (("NaN", 1), ("layout", 1), ("second", 4), ("forward", 4), ("compiled", 2000)):
                if seed % every == 0:
                    FURTHER[how](program, first)
    return "without gradients" if stale else "with gradients"


def as_far_as_comparable(program: Program, full: Run, plain: Run) -> tuple[Run, Run]:
    """Both runs up to the step that PyTorch refuses, or where a half takes a jump."""
    number = int(plain.refusal.split()[1].rstrip(",")) if plain.refusal.startswith("step") else None
    if program.dtype is torch.bfloat16:
        jumps = (i for i, step in enumerate(program.steps[:number]) if step.name in JUMPS)
        number = next(jumps, number)
    if number is None:
        return full, plain
    full = run(program, lambda leaf, mask: mg.masked(leaf.clone(), torch.ones_like(mask)), number)
    return full, run(program, lambda leaf, _: leaf.clone(), number)


def in_another_layout(program: Program, first: Run) -> None:
    """The same entries, as far as the layout takes part; writes stay where they are made."""
    layout = random.Random(program.seed).choice(LAYOUTS)
    number = next((i for i, step in enumerate(program.steps) if step.name in WRITES), len(program.steps))
    found = run(program, stored(layout), number)
    if found.refusal.startswith("step"):
        number = int(found.refusal.split()[1].rstrip(","))
        found = run(program, stored(layout), number)
    same(program, found, run(program, garbled(0.0), number), f"entries stored as {layout}", gradients=False)


def twice_differentiated(program: Program, first: Run) -> None:
    """Second derivatives: PyTorch's, and none of garbage."""
    if program.dtype is not torch.float64:
        return
    full = run(program, lambda leaf, mask: mg.masked(leaf.clone(), torch.ones_like(mask)), twice=True)
    plain = run(program, lambda leaf, _: leaf.clone(), twice=True)
    same(program, full, plain, "second derivatives", gradients=not (full.refusal or plain.refusal))
    clean, other = (run(program, garbled(g), twice=True) for g in (0.0, math.nan))
    same(program, other, clean, "second derivatives, NaN under the mask")


def in_forward_mode(program: Program, first: Run) -> None:
    """The derivative along a direction is that of the backward pass."""
    if program.dtype is not torch.float64 or any(step.name == "detach" for step in program.steps):
        return
    directions = [
        torch.linspace(-1, 1, leaf.numel(), dtype=leaf.dtype).reshape(leaf.shape) for leaf in program.leaves
    ]

    def total(make: Callable[[Tensor, Tensor], Any], *leaves: Tensor) -> Tensor:
        fresh = [make(leaf, mask) for leaf, mask in zip(leaves, program.masks, strict=True)]
        variables = [*fresh, *(v.clone() for v in fresh)]
        for step in program.steps:
            variables += apply(step, variables)
        sums = torch.zeros((), dtype=torch.float64)
        for v in variables:
            part = filled(v)
            if part.is_floating_point():
                sums = sums + (part * spread(part)).sum()
        return sums

    def slope_by(make: Callable[[Tensor, Tensor], Any]) -> float:
        return float(torch.func.jvp(partial(total, make), tuple(program.leaves), tuple(directions))[1])

    try:
        along = slope_by(mg.masked)
    except (RuntimeError, NotImplementedError) as error:
        # PyTorch has no formula, or not for this write; or what a mask says, or its memory, cannot be found out there
        known = ("forward", "inplace", "in-place", "would not see it", "share one Boolean")
        if any(words in str(error) for words in known):
            return
        raise
    slope = sum(
        float((g * d).sum()) for g, d in zip(first.gradients, directions, strict=True) if g is not None
    )
    if math.isclose(along, slope, rel_tol=1e-6, abs_tol=1e-6):
        return
    # 1 / log_softmax of a single entry; atan2(0, 0), of which PyTorch has a number backward and NaN forward
    if math.isnan(along) and (math.isnan(slope) or math.isnan(slope_by(lambda leaf, _: leaf))):
        return
    raise Failure(f"{program}\nforward mode: {along}, backward: {slope}")


def in_a_graph(program: Program, first: Run) -> None:
    """Compiled: the same, in one graph."""

    def everything(*given: Any) -> list[Any]:
        variables = [*given, *(v.clone() for v in given)]
        for step in program.steps:
            variables += apply(step, variables)
        return variables

    make = garbled(math.nan)
    torch.compiler.reset()
    given = [make(leaf, mask) for leaf, mask in zip(program.leaves, program.masks, strict=True)]
    found = torch.compile(everything, backend="eager")(*given)
    same(program, Run(found, []), Run(first.variables, []), "compiled", gradients=False)


def as_nan_travels(program: Program, first: Run) -> None:
    """An independent oracle of masks: entry by entry, through views and writes, NaN goes where "unspecified" goes."""
    known = program.dtype.is_floating_point or program.dtype.is_complex
    if not known or not all(step.name in TRANSPARENT for step in program.steps):
        return
    found = run(program, lambda leaf, mask: torch.where(mask, leaf, math.nan))
    for i, (variable, plain) in enumerate(zip(first.variables, found.variables, strict=True)):
        if not torch.equal(mask_of(variable), ~plain.isnan()):
            raise Failure(
                f"{program}\nmask of v{i} is {mask_of(variable).tolist()}, not {(~plain.isnan()).tolist()}"
            )


FURTHER: dict[str, Callable[[Program, Run], None]] = {
    "NaN": as_nan_travels,
    "layout": in_another_layout,
    "second": twice_differentiated,
    "forward": in_forward_mode,
    "compiled": in_a_graph,
}
