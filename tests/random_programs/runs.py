"""Running a program on masked tensors of some kind, and comparing two runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.patterns.boolean import BooleanPattern
from tests.random_programs.steps import HALVES, Program, apply, moves, started

__all__ = [
    "ASK_FOR_A_COPY",
    "FULL",
    "PLAIN",
    "STALE",
    "Failure",
    "Operands",
    "Run",
    "close",
    "filled",
    "garbled",
    "mask_of",
    "run",
    "same",
    "spread",
    "stored",
]

#: A backward pass fails, most often because what it needs was written to: PyTorch's own error.
STALE = "stale"
#: Memory that several entries share, and memory in another order than PyTorch's result has, say what to write.
ASK_FOR_A_COPY = ("clone() the tensor", "Use .reshape(...) instead")


class Failure(AssertionError):
    """A program that tells two runs apart that must not differ."""


@dataclass
class Run:
    """What a run has come to: variables, gradients of the leaves, or the words with which it was refused."""

    variables: list[Any]
    gradients: list[Tensor | None]
    refusal: str = ""


@dataclass(frozen=True)
class Operands:
    """What a program is run on: the plain leaf, with what lies under its mask, and what is made of it."""

    fill: Callable[[Tensor, Tensor], Tensor]
    wrap: Callable[[Tensor, Tensor], Any]


PLAIN = Operands(lambda leaf, _: leaf.clone(), lambda leaf, _: leaf)
FULL = Operands(lambda leaf, _: leaf.clone(), lambda leaf, mask: mg.masked(leaf, torch.ones_like(mask)))


def run(program: Program, operands: Operands, number: int | None = None, twice: bool = False) -> Run:
    """On fresh copies of the leaves; what is refused ends the program.

    ``number``: of steps to be run; ``twice``: the gradients are those of a function of the gradients.
    """
    leaves = [operands.fill(*pair) for pair in zip(program.leaves, program.masks, strict=True)]
    if moves(program.dtype):
        leaves = [leaf.requires_grad_() for leaf in leaves]
    variables = started(operands.wrap, leaves, program.masks)
    for i, step in enumerate(program.steps[:number]):
        try:
            variables += apply(step, variables)
        except (mg.errors.MaskgradError, RuntimeError) as error:  # noqa: PERF203
            return Run(variables, [], f"step {i}, {type(error).__name__}: {error}")
    gradients: list[Tensor | None] = [None] * len(leaves)
    parts = [part for part in map(filled, variables) if part.requires_grad]
    if not parts:
        return Run(variables, gradients)
    try:
        weights = [spread(part) for part in parts]
        gradients = list(torch.autograd.grad(parts, leaves, weights, create_graph=twice, allow_unused=True))
        if twice:
            parts = [g.abs().square() for g in gradients if g is not None and g.requires_grad]
            weights = [spread(part) for part in parts]
            gradients = [None] * len(leaves)
            if parts:
                gradients = list(torch.autograd.grad(parts, leaves, weights, allow_unused=True))
    except RuntimeError as error:
        stale = "modified by an inplace operation" in str(error)
        return Run(variables, [], STALE if stale else f"{STALE}, {error}")
    return Run(variables, gradients)


def spread(like: Tensor) -> Tensor:
    """Weights of the shape and dtype of a result, no two alike."""
    return torch.linspace(0.5, 1.5, like.numel(), dtype=torch.float64).reshape(like.shape).to(like.dtype)


def filled(variable: Any) -> Tensor:
    """A variable as a plain tensor, 0 where it is unspecified."""
    if isinstance(variable, Tensor):
        return variable
    if not isinstance(variable._pattern, BooleanPattern):
        variable = variable.to_dense()
    return torch.where(variable._pattern.mask, variable._values, _zero(variable._values.dtype))


@functools.cache
def _zero(dtype: torch.dtype) -> Tensor:
    return torch.zeros((), dtype=dtype)


def mask_of(variable: Any) -> Tensor:
    """Where a variable is specified; a plain one is everywhere."""
    if isinstance(variable, mg.MaskedTensor):
        pattern = variable._pattern
        return pattern.mask if isinstance(pattern, BooleanPattern) else variable.to_dense().mask
    return torch.ones(variable.shape, dtype=torch.bool)


def garbled(garbage: float) -> Operands:
    def fill(leaf: Tensor, mask: Tensor) -> Tensor:
        number = garbage if moves(leaf.dtype) else (1 << 30) + 3
        return torch.where(mask, leaf, torch.tensor(number).to(leaf.dtype))

    return Operands(fill, lambda leaf, mask: mg.masked(leaf, mask.clone()))


def stored(layout: str) -> Operands:
    """``rows`` are a COO tensor's, too; a jagged tensor needs a mask of lengths."""

    def wrap(leaf: Tensor, mask: Tensor) -> Any:
        x = mg.masked(leaf, mask.clone())
        if layout == "jagged":
            return x.to_jagged() if is_ragged(mask) else x
        if layout == "coo" or leaf.ndim != 2:
            return x.to_sparse()
        if layout == "rows":
            return x.to_sparse(1) if torch.equal(mask, mask[:, :1].expand_as(mask)) else x.to_sparse()
        if layout in ("bsr", "bsc"):
            return x.to_sparse(layout=getattr(torch, f"sparse_{layout}"), blocksize=(1, 1))
        return x.to_sparse(layout=getattr(torch, f"sparse_{layout}"))

    return Operands(lambda leaf, _: leaf.clone(), wrap)


def is_ragged(mask: Tensor) -> bool:
    """Whether a mask says lengths along dimension 1, the same for all that follows."""
    if mask.ndim < 2:
        return False
    rows = mask.flatten(2)[..., :1] if mask.ndim > 2 else mask[..., None]
    same = torch.equal(mask, rows.reshape(*mask.shape[:2], *[1] * (mask.ndim - 2)).expand_as(mask))
    return same and torch.equal(rows.squeeze(-1).cummin(1).values, rows.squeeze(-1))


def same(program: Program, found: Run, expected: Run, what: str, gradients: bool = True) -> None:
    if gradients and found.refusal != expected.refusal:
        raise Failure(f"{program}\n{what}: {found.refusal or 'no refusal'}, not {expected.refusal or 'none'}")
    for i, (one, other) in enumerate(zip(found.variables, expected.variables, strict=True)):
        masks = [mask_of(v) for v in (one, other)]
        if not torch.equal(*masks):
            raise Failure(f"{program}\n{what}: mask of v{i} is {masks[0].tolist()}, not {masks[1].tolist()}")
        close(program, [filled(v) for v in (one, other)], f"{what}: v{i}")
    if not gradients:
        return
    for i, (grad, right) in enumerate(zip(found.gradients, expected.gradients, strict=True)):
        if grad is None and right is None:
            continue
        pair = [torch.zeros_like(program.leaves[i]) if g is None else g for g in (grad, right)]
        # exp() of a Boolean is float32, and its gradients are as coarse
        single = any(v.dtype in (torch.float32, torch.complex64) for v in expected.variables)
        close(program, [p.to_dense() for p in pair], f"{what}: gradient of leaf {i}", single)


def close(program: Program, pair: list[Tensor], what: str, single: bool = False) -> None:
    one, other = (p.detach() for p in pair)
    half = program.dtype in HALVES
    wide = one.dtype in (torch.float64, torch.complex128) and not single
    tolerance = 0.1 if half else 1e-10 if wide else 1e-3
    if one.dtype != other.dtype or one.shape != other.shape:
        raise Failure(
            f"{program}\n{what}: {one.dtype} {tuple(one.shape)}, not {other.dtype} {tuple(other.shape)}"
        )
    if torch.equal(one, other):
        return
    agree = False
    if moves(one.dtype):
        largest = float(other.abs().nan_to_num(0, 0, 0).max()) if other.numel() else 0.0
        agree = torch.allclose(one, other, rtol=tolerance, atol=tolerance * max(1.0, largest), equal_nan=True)
    if not agree:
        raise Failure(f"{program}\n{what} is\n{one}\nnot\n{other}")
