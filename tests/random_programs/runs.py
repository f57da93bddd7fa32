"""Running a program on masked tensors of some kind, and comparing two runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from tests.random_programs.steps import Program, apply, started

__all__ = ["STALE", "Failure", "Run", "filled", "garbled", "mask_of", "run", "same", "spread", "stored"]

#: A backward pass fails, most often because what it needs was written to: PyTorch's own error.
STALE = "stale"


class Failure(AssertionError):
    """A program that tells two runs apart that must not differ."""


@dataclass
class Run:
    """What a run has come to: variables, gradients of the leaves, or the words with which it was refused."""

    variables: list[Any]
    gradients: list[Tensor | None]
    refusal: str = ""


def run(
    program: Program, make: Callable[[Tensor, Tensor], Any], number: int | None = None, twice: bool = False
) -> Run:
    """Leaves made by ``make`` of fresh copies; what is refused ends the program.

    ``number``: of steps to be run; ``twice``: the gradients are those of a function of the gradients.
    """
    leaves: list[Tensor] = []
    moving = program.dtype.is_floating_point or program.dtype.is_complex

    def made(leaf: Tensor, mask: Tensor) -> Any:
        fresh = make(leaf, mask)
        plain = fresh if isinstance(fresh, Tensor) else fresh._values
        leaves.append(plain.requires_grad_() if moving else plain)
        return fresh

    variables = started(program, made)
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
    return variable.to_dense().filled(torch.zeros((), dtype=variable.dtype))  # type: ignore[no-any-return]


def mask_of(variable: Any) -> Tensor:
    """Where a variable is specified; a plain one is everywhere."""
    if isinstance(variable, mg.MaskedTensor):
        return variable.to_dense().mask
    return torch.ones(variable.shape, dtype=torch.bool)


def garbled(garbage: float) -> Callable[[Tensor, Tensor], mg.MaskedTensor]:
    def make(leaf: Tensor, mask: Tensor) -> mg.MaskedTensor:
        filler = garbage if leaf.dtype.is_floating_point or leaf.dtype.is_complex else (1 << 40) + 3
        return mg.masked(torch.where(mask, leaf, torch.tensor(filler).to(leaf.dtype)), mask.clone())

    return make


def stored(layout: str) -> Callable[[Tensor, Tensor], mg.MaskedTensor]:
    def make(leaf: Tensor, mask: Tensor) -> mg.MaskedTensor:
        x = mg.masked(leaf.clone(), mask.clone())
        if layout == "rows" or leaf.ndim != 2:
            return x.to_sparse()
        return x.to_sparse(layout=getattr(torch, f"sparse_{layout}"))

    return make


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
        close(program, [p.to_dense() for p in pair], f"{what}: gradient of leaf {i}")


def close(program: Program, pair: list[Tensor], what: str) -> None:
    one, other = (p.detach() for p in pair)
    half = program.dtype is torch.bfloat16
    wide = one.dtype in (torch.float64, torch.complex128)
    tolerance = 0.1 if half else 1e-10 if wide else 1e-3
    if one.dtype != other.dtype or one.shape != other.shape:
        raise Failure(
            f"{program}\n{what}: {one.dtype} {tuple(one.shape)}, not {other.dtype} {tuple(other.shape)}"
        )
    if not one.dtype.is_floating_point and not one.dtype.is_complex:
        agree = torch.equal(one, other)
    else:
        largest = float(other.abs().nan_to_num(0, 0, 0).max()) if other.numel() else 0.0
        agree = torch.allclose(one, other, rtol=tolerance, atol=tolerance * max(1.0, largest), equal_nan=True)
    if not agree:
        raise Failure(f"{program}\n{what} is\n{one}\nnot\n{other}")
