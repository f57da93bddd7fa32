"""What must not tell two runs of a program apart."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.kernels.selection import use_kernels
from tests.random_programs.drawing import LARGE, draw
from tests.random_programs.runs import (
    ASK_FOR_A_COPY,
    FULL,
    PLAIN,
    STALE,
    Failure,
    Operands,
    Run,
    close,
    filled,
    garbled,
    mask_of,
    run,
    same,
    spread,
    stored,
)
from tests.random_programs.steps import (
    HALVES,
    TRANSPARENT,
    WRITES,
    Program,
    apply,
    moves,
    started,
)

__all__ = ["check"]

GARBAGE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "huge": 1e38}
LAYOUTS = ("coo", "rows", "csr", "csc", "bsr", "bsc", "jagged", "jagged")
#: What makes one rounding of a half a difference of 1.
JUMPS = {"sign", "lt", "eq", "argmax", "where"}


def check(program: Program) -> str:
    """Compare the runs of a program; the kinds of comparison that were made."""
    seed = program.seed
    if not program.steps:
        return "empty"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full = run(program, FULL)
        plain = run(program, PLAIN)
        # zeros in memory that several entries share: allowed in PyTorch, refused here
        known = full.refusal in ("", STALE, plain.refusal) or any(w in full.refusal for w in ASK_FOR_A_COPY)
        both_stale = full.refusal.startswith(STALE) and plain.refusal.startswith(STALE)
        if not known and not both_stale:
            raise Failure(f"{program}\nrefused, and PyTorch runs it: {full.refusal}")
        if any(words in full.refusal + plain.refusal for words in ASK_FOR_A_COPY):
            return "refused"
        stale = bool(full.refusal or plain.refusal)
        same(program, *as_far_as_comparable(program, full, plain), "everything specified", not stale)
        first = run(program, garbled(0.0))
        detached = [i for i, step in enumerate(program.steps) if step.name == "detach"]
        # autograd is not told of what is written there
        unseen = bool(detached) and any(step.name in WRITES for step in program.steps[detached[0] :])
        for name in ("nan", random.Random(seed).choice(("inf", "-inf", "huge"))):
            other = run(program, garbled(GARBAGE[name]))
            # What a look finds harmless is kept for the backward pass as it is, and must not be written to, as in
            # PyTorch; what is not harmless is replaced first.
            told = STALE not in (first.refusal, other.refusal) or first.refusal == other.refusal
            same(program, other, first, f"{name} under the mask", told and not unseen)
        for leaf_mask, gradient in zip(program.masks, () if unseen else first.gradients, strict=False):
            if gradient is not None and gradient[~leaf_mask].count_nonzero():
                raise Failure(f"{program}\nan unspecified entry has a gradient")
        if not stale and not first.refusal:
            for compare, every in FURTHER.items():
                if seed % every == 0:
                    compare(program, first)
    return "without gradients" if stale else "with gradients"


def as_far_as_comparable(program: Program, full: Run, plain: Run) -> tuple[Run, Run]:
    """Both runs up to the step that PyTorch refuses, or where a half takes a jump."""
    number = int(plain.refusal.split()[1].rstrip(",")) if plain.refusal.startswith("step") else None
    if program.dtype in HALVES:
        jumps = (i for i, step in enumerate(program.steps[:number]) if step.name in JUMPS)
        number = next(jumps, number)
    if number is None:
        return full, plain
    return run(program, FULL, number), run(program, PLAIN, number)


def in_another_layout(program: Program, first: Run) -> None:
    """The same entries, as far as the layout takes part; writes stay where they are made."""
    layout = random.Random(program.seed).choice(LAYOUTS)
    number = next((i for i, step in enumerate(program.steps) if step.name in WRITES), len(program.steps))
    found = run(program, stored(layout), number)
    if found.refusal.startswith("step"):
        number = int(found.refusal.split()[1].rstrip(","))
        found = run(program, stored(layout), number)
    expected = run(program, garbled(0.0), number)
    stale = (
        STALE in found.refusal[:5] or STALE in expected.refusal[:5]
    )  # what is kept for the backward pass differs
    same(program, found, expected, f"entries stored as {layout}", gradients=not stale)


def twice_differentiated(program: Program, first: Run) -> None:
    """Second derivatives: PyTorch's, and none of garbage."""
    if program.dtype is not torch.float64:
        return
    full, plain = (run(program, operands, twice=True) for operands in (FULL, PLAIN))
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
        variables = started(make, list(leaves), program.masks)
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

    operands = garbled(math.nan)
    torch.compiler.reset()
    pairs = [(operands.fill(*pair), pair[1]) for pair in zip(program.leaves, program.masks, strict=True)]
    given = [operands.wrap(*pair) for pair in pairs]
    found = torch.compile(everything, backend="eager")(*given)
    same(program, Run(found, []), Run(first.variables, []), "compiled", gradients=False)


def vectorised(program: Program, first: Run) -> None:
    """Under vmap each of two samples is what it is alone."""
    if any(step.name == "argmax" for step in program.steps):  # among equals PyTorch takes another one there
        return
    leaves = [torch.stack([leaf, leaf.flip(0)]) for leaf in program.leaves]
    masks = [torch.stack([mask, mask.flip(0)]) for mask in program.masks]

    def everything(*given: Tensor) -> list[tuple[Tensor, Tensor]]:
        half = len(given) // 2
        variables = started(mg.masked, list(given[:half]), [mask.clone() for mask in given[half:]])
        for step in program.steps:
            variables += apply(step, variables)
        return [(filled(v), mask_of(v)) for v in variables]

    try:
        found = torch.func.vmap(everything)(*leaves, *masks)
    except (RuntimeError, NotImplementedError, mg.errors.MaskgradError) as error:
        known = (
            "vmap",
            "clone() the tensor",
            "would not see it",
            "share one Boolean",
            "inplace",
            "in-place",
            "data-dependent",
        )
        if any(words in str(error) for words in known):
            return
        raise
    flipped = replace(
        program, leaves=[x.flip(0) for x in program.leaves], masks=[m.flip(0) for m in program.masks]
    )
    for i, alone in enumerate((first, run(flipped, garbled(0.0)))):
        if alone.refusal.startswith("step"):
            return
        for k, ((values, mask), variable) in enumerate(zip(found, alone.variables, strict=True)):
            if not torch.equal(mask[i], mask_of(variable)):
                raise Failure(
                    f"{program}\nvmap: mask of v{k} is {mask[i].tolist()}, not {mask_of(variable).tolist()}"
                )
            # PyTorch promotes dtypes with the dimension that vmap hides
            close(program, [values[i].to(variable.dtype), filled(variable)], f"vmap, sample {i}: v{k}")


def by_kernels(program: Program, first: Run) -> None:
    """Compiled loops give what their references give, forward and backward."""
    with use_kernels("reference"):
        expected = run(program, garbled(math.nan))
    with use_kernels("cpu"):
        found = run(program, garbled(math.nan))
    same(program, found, expected, "kernels", gradients=STALE not in found.refusal + expected.refusal)


def on_large_tensors(program: Program, first: Run) -> None:
    """Another program, on as many entries as kernels ask for: kernel beside reference."""
    large = draw(program.seed, LARGE)
    number = len(large.steps)
    if large.dtype in HALVES:  # sums of thousands of halves, and what jumps at their last digit
        number = next((i for i, step in enumerate(large.steps) if step.name in JUMPS), number)
    with use_kernels("reference"):
        expected = run(large, garbled(math.nan), number)
    found = run(large, garbled(math.nan), number)
    same(large, found, expected, "large", gradients=STALE not in found.refusal + expected.refusal)


def as_nan_travels(program: Program, first: Run) -> None:
    """An independent oracle of masks: entry by entry, through views and writes, NaN goes where "unspecified" goes."""
    if not moves(program.dtype) or not all(step.name in TRANSPARENT for step in program.steps):
        return
    found = run(program, Operands(lambda leaf, mask: torch.where(mask, leaf, math.nan), PLAIN.wrap))
    for i, (variable, plain) in enumerate(zip(first.variables, found.variables, strict=True)):
        if not torch.equal(mask_of(variable), ~plain.isnan()):
            raise Failure(
                f"{program}\nmask of v{i} is {mask_of(variable).tolist()}, not {(~plain.isnan()).tolist()}"
            )


#: Which further comparison is made for one program of how many.
FURTHER: dict[Callable[[Program, Run], None], int] = {
    as_nan_travels: 1,
    in_another_layout: 1,
    by_kernels: 10,
    twice_differentiated: 4,
    in_forward_mode: 4,
    vectorised: 4,
    on_large_tensors: 100,
    in_a_graph: 2000,
}
