"""A program of operations, views and writes: how it is run on tensors of one kind, and which runs must agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg

__all__ = ["Failure", "Program", "Step", "check", "has_gradients"]

#: A backward pass fails, most often because what it needs was overwritten: PyTorch's own error.
STALE = "stale"
#: Memory that several entries share, and memory in another order than PyTorch's result has.
ASK_FOR_A_COPY = ("clone() the tensor", "Use .reshape(...) instead", "share one Boolean", "would not see it")


class Failure(AssertionError):
    """Two runs of a program differ that must not."""


@dataclass(frozen=True)
class Step:
    """A call with variables, by their numbers, or scalars; a write makes no variable."""

    call: Callable[..., Any]
    operands: tuple[int | float, ...]
    is_write: bool = False

    def run(self, variables: list[Any]) -> list[Any]:
        """The new variables."""
        made = self.call(*(variables[x] if isinstance(x, int) else x for x in self.operands))
        return [] if self.is_write else list(made) if isinstance(made, (list, tuple)) else [made]


@dataclass
class Program:
    """Leaves, a copy of each, and steps that PyTorch runs on them."""

    leaves: list[Tensor]
    masks: list[Tensor]
    steps: list[Step] = field(default_factory=list)
    is_entrywise: bool = True  #: in each step an entry depends on entries, one by one
    has_removed: bool = False  #: entries became unspecified


@dataclass
class Run:
    """Variables, gradients of the leaves, and why it ended early: at which step, or in the backward pass."""

    variables: list[Any]
    gradients: list[Tensor | None] = field(default_factory=list)
    refusal: str = ""
    step: int | None = None


def plain(leaf: Tensor, mask: Tensor) -> Tensor:
    return leaf


def nan_at_unspecified(leaf: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, leaf, math.nan)


def everything_specified(leaf: Tensor, mask: Tensor) -> Any:
    return mg.masked(leaf, torch.ones_like(mask))


def garbage(value: float, leaf: Tensor, mask: Tensor) -> Any:
    number = torch.tensor(value if has_gradients(leaf) else 99).to(leaf.dtype)
    return mg.masked(torch.where(mask, leaf, number), mask.clone())


def stored(layout: str, leaf: Tensor, mask: Tensor) -> Any:
    """In a layout, if it can store the leaf; jagged, if the mask is one of lengths."""
    x = mg.masked(leaf, mask.clone())
    if layout == "jagged":
        first = mask[(slice(None), slice(None), *[slice(0, 1)] * (mask.ndim - 2))] if mask.ndim > 1 else mask
        is_ragged = mask.ndim > 1 and torch.equal(mask, first.cummin(1).values.expand_as(mask))
        return x.to_jagged() if is_ragged else x
    return x.to_sparse(layout=getattr(torch, f"sparse_{layout}" if leaf.ndim == 2 else "sparse_coo"))


def has_gradients(x: Tensor) -> bool:
    return x.dtype.is_floating_point or x.dtype.is_complex


def run(
    program: Program,
    kind: Callable[[Tensor, Tensor], Any],
    number: int | None = None,
    specified: list[Tensor] | None = None,
) -> Run:
    """Run the first ``number`` steps on fresh copies of the leaves; ``specified``: what alone has a gradient."""
    leaves = [leaf.clone().requires_grad_(has_gradients(leaf)) for leaf in program.leaves]
    variables = [kind(leaf, mask) for leaf, mask in zip(leaves, program.masks, strict=True)]
    variables += [v.clone() for v in variables]
    for i, step in enumerate(program.steps[:number]):
        try:
            variables += step.run(variables)
        except (mg.errors.MaskgradError, RuntimeError) as error:  # noqa: PERF203
            return Run(variables, refusal=f"step {i}, {type(error).__name__}: {error}", step=i)
    parts = [filled(v) for v in variables]
    if specified is not None:
        parts = [torch.where(mask, part, 0) for mask, part in zip(specified, parts, strict=True)]
    parts = [part for part in parts if part.requires_grad]
    if not parts:
        return Run(variables, [None] * len(leaves))
    # no two entries have the same weight
    weights = [torch.linspace(0.5, 1.5, p.numel()).reshape(p.shape).to(p.dtype) for p in parts]
    try:
        return Run(variables, list(torch.autograd.grad(parts, leaves, weights, allow_unused=True)))
    except RuntimeError as error:
        is_stale = "modified by an inplace operation" in str(error)
        return Run(variables, refusal=STALE if is_stale else f"{STALE}, {error}")


def filled(variable: Any) -> Tensor:
    """A variable as a plain tensor, 0 where it is unspecified."""
    if isinstance(variable, Tensor):
        return variable
    values = variable.to_dense()._values
    return torch.where(mask_of(variable), values, torch.zeros((), dtype=values.dtype))


def mask_of(variable: Any) -> Tensor:
    """Where a variable is specified; a plain one is everywhere."""
    if isinstance(variable, mg.MaskedTensor):
        return variable.to_dense().mask
    return torch.ones(variable.shape, dtype=torch.bool)


def check(program: Program, value: float, layout: str) -> None:
    """Compare the program on masked tensors of several kinds; ``value``: garbage beside NaN."""
    known = run(program, plain)
    clean = run(program, partial(garbage, 0.0))
    if not program.has_removed:
        compare_with_pytorch(program, known)
    if program.is_entrywise and not known.refusal and has_gradients(program.leaves[0]):
        compare_with_nan(program, clean)
    for number in (math.nan, value):
        found = run(program, partial(garbage, number))
        # what is finite is kept for the backward pass as it is, and must not be overwritten, as in PyTorch
        is_same = found.refusal == clean.refusal
        if not is_same and STALE not in (clean.refusal, found.refusal):
            raise Failure(f"{number} under the mask: {found.refusal}; 0 under the mask: {clean.refusal}")
        compare(f"{number} under the mask", found, clean, is_same)
    for mask, gradient in zip(program.masks, clean.gradients, strict=False):
        if gradient is not None and gradient[~mask].count_nonzero():
            raise Failure("an unspecified entry has a gradient")
    compare_layout(program, layout)


def compare_with_pytorch(program: Program, known: Run) -> None:
    """Everything specified: PyTorch's values and gradients."""
    full = run(program, everything_specified)
    if any(words in full.refusal for words in ASK_FOR_A_COPY):
        return
    # what the backward pass needs is not the same: it may be overwritten in one run only
    if full.refusal not in ("", STALE) and not known.refusal:
        raise Failure(f"everything specified: {full.refusal}, and PyTorch runs it")
    compare("everything specified", full, known, not (full.refusal or known.refusal))


def compare_with_nan(program: Program, found: Run) -> None:
    """Where an entry depends on entries, one by one, "unspecified" goes where NaN goes in PyTorch.

    The specified entries have PyTorch's values on plain tensors, and the gradients of these entries alone.
    """
    if any(words in found.refusal for words in ASK_FOR_A_COPY):
        return
    if found.refusal:
        raise Failure(f"{found.refusal}, and PyTorch trains")
    masks = [~v.isnan() for v in run(program, nan_at_unspecified).variables]
    expected = run(program, plain, specified=masks)
    expected.variables = [mg.masked(v, mask) for v, mask in zip(expected.variables, masks, strict=True)]
    compare("compared with plain tensors", found, expected)


def compare_layout(program: Program, layout: str) -> None:
    """The same entries, up to the first write or refusal: layouts other than the Boolean mask have no views."""
    number = next((i for i, step in enumerate(program.steps) if step.is_write), len(program.steps))
    found = run(program, partial(stored, layout), number)
    if found.step is not None:
        number = found.step
        found = run(program, partial(stored, layout), number)
    expected = run(program, partial(garbage, 0.0), number)
    compare(f"entries stored as {layout}", found, expected, not (found.refusal or expected.refusal))


def compare(what: str, found: Run, expected: Run, gradients: bool = True) -> None:
    for i, (one, other) in enumerate(zip(found.variables, expected.variables, strict=True)):
        if not torch.equal(mask_of(one), mask_of(other)):
            raise Failure(f"{what}: mask of v{i} is {mask_of(one).tolist()}, not {mask_of(other).tolist()}")
        compare_values(f"{what}: v{i}", filled(one), filled(other))
    if not gradients:
        return
    # exp() of a Boolean is float32, and its gradients are as coarse
    is_single = any(v.dtype in (torch.float32, torch.complex64) for v in expected.variables)
    for i, pair in enumerate(zip(found.gradients, expected.gradients, strict=True)):
        if pair != (None, None):
            like = next(g for g in pair if g is not None)
            one, other = (torch.zeros_like(like) if g is None else g.to_dense() for g in pair)
            compare_values(f"{what}: gradient of leaf {i}", one, other, is_single)


def compare_values(what: str, found: Tensor, expected: Tensor, is_single: bool = False) -> None:
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        kinds = [f"{x.dtype} {tuple(x.shape)}" for x in (found, expected)]
        raise Failure(f"{what} is {kinds[0]}, not {kinds[1]}")
    agree = torch.equal(found, expected)
    if not agree and has_gradients(found):
        tolerance = 1e-10 if found.dtype in (torch.float64, torch.complex128) and not is_single else 1e-3
        largest = max(1.0, float(expected.abs().nan_to_num(0, 0, 0).max()))
        agree = torch.allclose(found, expected, rtol=tolerance, atol=tolerance * largest, equal_nan=True)
    if not agree:
        raise Failure(f"{what} is\n{found}\nnot\n{expected}")
