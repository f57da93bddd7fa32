"""Programs that PyTorch runs, drawn at random."""

from __future__ import annotations

import random
import warnings
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from tests.random_programs.steps import (
    BINARY,
    IN_PLACE,
    REDUCED,
    UNARY,
    WITH_OTHER,
    Program,
    Step,
    apply,
    moves,
    started,
)

__all__ = ["draw"]

SHAPES = ((2, 3), (3,), (2, 1), (3, 2), (1, 3), (2, 3, 2), (4,), (2, 2))
#: Large enough for compiled loops and several blocks of them.
LARGE = ((40, 900), (900,), (40, 1), (900, 40), (1, 900), (5, 8, 900))
DTYPES = (torch.float64,) * 6 + (torch.float32,) * 3 + (
    torch.bfloat16, torch.bfloat16, torch.float16, torch.complex128, torch.complex128, torch.complex64,
    torch.int64, torch.int64, torch.int32, torch.uint8, torch.bool,
)  # fmt: skip
MOST = 1e4
VIEWS = [
    "transpose",
    "reshape",
    "view",
    "index",
    "index",
    "unsqueeze",
    "squeeze",
    "chunk",
    "unbind",
    "expand",
    "diagonal",
]
OTHER_READS = ("cat", "stack", "where", "matmul", "sort")
KINDS = ("unary", "binary", "reduced", "view", "view", "write", "write", "write", "other")


def draw(
    seed: int,
    shapes: tuple[tuple[int, ...], ...] = SHAPES,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    kinds: tuple[str, ...] = KINDS,
    steps: Collection[str] | None = None,
) -> Program:
    """A program that PyTorch runs; ``steps``: the names that may occur in it, None: all."""
    chance = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    dtype = chance.choice(dtypes)
    leaves, masks = [], []
    for _ in range(chance.choice((1, 2, 2, 3))):
        shape = chance.choice(shapes)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        leaf = torch.randn(shape, dtype=wide, generator=generator)
        leaves.append(leaf.to(dtype) if moves(dtype) else (leaf * 4).round().to(torch.int64).abs().to(dtype))
        masks.append(drawn_mask(chance, generator, shape))
    program = Program(seed, dtype, leaves, masks)
    fresh = [leaf.clone().requires_grad_(moves(dtype)) for leaf in leaves]
    variables: list[Any] = started(lambda leaf, _: leaf, fresh, masks)
    wanted, tries = chance.randint(3, 8), 0
    while len(program.steps) < wanted and tries < 60:
        tries += 1
        step = drawn_step(chance, variables, kinds)
        if step is None or (steps is not None and step.name not in steps):
            continue
        if step.name in (*WITH_OTHER, "setitem", "out") and overlaps([variables[i] for i in step.operands]):
            continue  # what comes out is not defined in PyTorch
        before = [v.detach().clone() for v in variables]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                new = list(apply(step, variables))
                for v in (*variables, *new):
                    v.reshape(-1)  # PyTorch refuses to read some views of what was written
        except (RuntimeError, IndexError, TypeError, NotImplementedError, ValueError):
            for v, old in zip(variables, before, strict=True):
                if not torch.equal(v.detach().nan_to_num(), old.nan_to_num()):  # a write that failed half-way
                    return draw(seed + (1 << 40), shapes, dtypes, kinds, steps)
            continue
        program.steps.append(step)
        variables += new
        if any(
            v.numel() and not bool((v.detach().abs() < MOST).all())
            for v in variables
            if v.dtype != torch.bool
        ):
            program.steps.pop()
            break
    return program


def drawn_mask(chance: random.Random, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Holes anywhere, or, one time in four, sequences that end early or rows that are there or not."""
    density = chance.choice((0.4, 0.7, 0.9))
    kind = chance.choice(("any", "any", "any", "lengths", "rows")) if len(shape) > 1 else "any"
    if kind == "any":
        return torch.rand(shape, generator=generator) < density
    if kind == "rows":
        rows = torch.rand(shape[:1], generator=generator) < density
        return rows.reshape(-1, *[1] * (len(shape) - 1)).expand(shape).clone()
    lengths = torch.randint(0, shape[1] + 1, shape[:1], generator=generator)
    there = torch.arange(shape[1]) < lengths[:, None]
    return there.reshape(*shape[:2], *[1] * (len(shape) - 2)).expand(shape).clone()


def overlaps(operands: list[Tensor]) -> bool:
    """Whether the operands of a write are different views of one memory."""
    if len(operands) < 2 or operands[0] is operands[1]:
        return False
    return operands[0].untyped_storage().data_ptr() == operands[1].untyped_storage().data_ptr()


def drawn_step(chance: random.Random, variables: list[Any], kinds: tuple[str, ...] = KINDS) -> Step | None:
    i = chance.randrange(len(variables))
    x, j = variables[i], chance.randrange(len(variables))
    dims = list(range(x.ndim))
    kind = chance.choice(kinds)
    number = round(chance.uniform(-2, 2), 1)
    other: tuple[tuple[int, ...], tuple[Any, ...]] = (
        ((i, j), ()) if chance.random() < 0.7 else ((i,), (number,))
    )
    if kind == "unary":
        return Step(chance.choice(UNARY), (i,))
    if kind == "binary":
        return Step(chance.choice(BINARY), *other)
    if kind == "reduced":
        name = chance.choice(REDUCED)
        return (
            Step(name, (i,), ((chance.choice(dims),) if name == "flip" else chance.choice(dims),))
            if dims
            else None
        )
    if kind == "write":
        rare = ("setitem", "setitem", "out", "masked_fill_", "view and write")
        name = chance.choice((*IN_PLACE, *WITH_OTHER, *WITH_OTHER, *rare))
        if name in IN_PLACE:
            return Step(name, (i,))
        if name in WITH_OTHER:
            return Step(name, *other)
        if name == "out":  # PyTorch would make it larger, and warns
            return Step(name, (i, j)) if x.shape == variables[j].shape else None
        if name == "masked_fill_":
            return Step(name, (i,), (torch.arange(x.numel()).reshape(x.shape) % 2 == 0, number))
        if name == "view and write":
            return Step(name, (i,), (slice(chance.randint(0, 2), None),))
        # PyTorch sends gradients to all that were written over, where an index is named twice
        index = drawn_index(chance, x, distinct=True)
        return Step(name, other[0], (index, number))
    if kind == "assignment":  # of what is drawn, or of nothing
        index = drawn_index(chance, x, distinct=True)
        return Step(*chance.choice((("setitem", other[0]), ("remove", (i,)))), (index, number))
    name = chance.choice(VIEWS if kind == "view" else OTHER_READS)
    if name == "transpose":
        return Step(name, (i,), tuple(chance.choices(dims, k=2))) if dims else None
    if name in ("reshape", "view"):
        return Step(name, (i,), (chance.choice([(-1,), (x.numel(),), (*x.shape[::-1],), (1, *x.shape)]),))
    if name == "index":
        return Step(name, (i,), (drawn_index(chance, x),))
    if name == "expand":
        return Step(name, (i,), ((2, *x.shape),))
    if name in ("squeeze", "diagonal"):
        return Step(name, (i,))
    if name in ("unsqueeze", "chunk", "unbind", "sort"):
        return Step(name, (i,), (chance.choice(dims),)) if dims else None
    if name == "cat":
        return Step(name, (i, j), (chance.choice(dims),)) if dims else None
    return Step(name, other[0] if name == "where" else (i, j))


def drawn_index(chance: random.Random, x: Any, distinct: bool = False) -> Any:
    if not x.ndim or not x.numel():
        return ...
    size = x.shape[0]
    return chance.choice(
        (
            chance.randrange(size),
            slice(chance.randrange(size), None),
            (..., chance.randrange(x.shape[-1])),
            (slice(None, None, 2),),
            None,
            torch.tensor(
                chance.sample(range(size), min(2, size)) if distinct else chance.choices(range(size), k=2)
            ),
            torch.arange(size) % 2 == 0,
        )
    )
