"""The difference of loss and gradients between two runs, or a run and its twins."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.batches import fields, tensor_of
from maskgrad.doctor.operations import dense, differing
from maskgrad.doctor.padding import Padding
from maskgrad.doctor.runner import Outcome, StepRunner
from maskgrad.doctor.twins import Twins

__all__ = [
    "Difference",
    "compare_outcomes",
    "compare_tensors",
    "compare_twins",
    "furthest",
    "moved_alike",
    "not_close",
]

#: relative to the largest entry: when shapes differ, sums are taken in another order
_RELATIVE = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 4e-2}
#: entries of a gradient that are this much smaller than the largest gradient of the step may be rounding
_SMALL = 1e-1
#: how far what a change does in float32 may be from what it does in float64, beside its size
_ALIKE = 0.25


@dataclass
class Difference:
    """What differs between two runs."""

    loss: tuple[float, float] | None = None
    gradients: dict[str, float] = field(default_factory=dict)
    #: whether some entry that differs is infinite or NaN in neither run
    finite: bool = False
    #: the largest difference, relative to the loss or to the gradient
    relative: float = 0.0

    def __bool__(self) -> bool:
        return self.loss is not None or bool(self.gradients)

    def words(self, how: str = "after") -> str:
        """The difference as part of a sentence; ``how`` names the second run."""
        parts = []
        if self.loss is not None:
            parts.append(f"the loss is {self.loss[0]:.6g} before, {self.loss[1]:.6g} {how}")
        if self.gradients:
            worst = max(self.gradients, key=lambda name: _size(self.gradients[name]))
            others = f" and {len(self.gradients) - 1} more" if len(self.gradients) > 1 else ""
            parts.append(f"the gradient of {worst}{others} changes by up to {self.gradients[worst]:.3g}")
        return "; ".join(parts)

    def numbers(self) -> dict[str, Any]:
        """The difference as plain data."""
        loss = None if self.loss is None else list(self.loss)
        return {"loss": loss, "gradients": dict(self.gradients), "relative": self.relative}


def _size(number: float) -> float:
    return float("inf") if number != number else number


def compare_twins(mode: Twins, outcome: Outcome, runner: StepRunner, paddings: list[Padding]) -> Difference:
    """Loss and gradients of a run beside their twins; gradients of the batch itself where it is real."""
    inside = {id(tensor_of(held)): key for key, held in fields(runner.batch).items()}
    by_key = {padding.key: padding for padding in paddings}
    padded = {name: by_key.get(inside.get(id(leaf))) for name, leaf in outcome.leaves.items()}
    return compare_tensors(mode, outcome.loss, outcome.gradients, padded)


def compare_tensors(
    mode: Twins,
    loss: Tensor | None,
    gradients: dict[str, Any],
    padded: dict[str, Padding | None] | None = None,
) -> Difference:
    """A loss and gradients by name beside their twins, those of ``padded`` only where they are real.

    What is no scalar, such as the root of a backward pass inside a checkpoint, may hold padding: its gradients tell.
    """
    difference = Difference()
    if loss is not None and loss.numel() == 1:
        twin = mode.twin(loss)
        if twin is not None and bool(differing(loss, twin).any()):
            difference.loss = (float(loss), float(twin))
            difference.finite |= math.isfinite(float(loss) - float(twin))
            size = max(abs(float(loss)), abs(float(twin)))
            difference.relative = _relative(abs(float(loss) - float(twin)), size)
    largest = max((_largest(gradient) for gradient in gradients.values()), default=0.0)
    for name, gradient in gradients.items():
        twin = mode.twin(gradient)
        if twin is None:
            continue
        ours, other = dense(gradient), dense(twin)
        apart, padding = (ours - other).abs(), (padded or {}).get(name)
        if padding is not None:
            apart *= padding.entries(apart)
        worst = apart.max().item() if apart.numel() else 0.0
        if worst != worst:
            # infinity minus itself, or zero times what is not real
            unequal = differing(ours, other)
            if padding is not None:
                unequal &= padding.entries(unequal)
            if not bool(unequal.any()):
                continue
            apart = apart[unequal]
            worst = apart.max().item()
        if worst:
            difference.gradients[name] = worst
            # what cancels in a small gradient is as large as elsewhere
            size = max(_largest(gradient), _SMALL * largest)
            difference.relative = max(difference.relative, _relative(worst, size))
            difference.finite |= bool((apart.isfinite() & (apart != 0)).any())
    return difference


def furthest(before: Outcome, after: Outcome) -> float:
    """The largest difference of two runs on the same samples, relative to the loss or to a gradient."""
    found = 0.0
    if before.loss is not None and after.loss is not None:
        first, second = float(before.loss), float(after.loss)
        found = _relative(abs(first - second), max(abs(first), abs(second)))
    largest = max((_largest(gradient) for gradient in before.gradients.values()), default=0.0)
    for name, gradient in before.gradients.items():
        other = after.gradients.get(name)
        if other is None or name in before.own or other.shape != gradient.shape:
            continue
        apart = _largest(dense(gradient) - dense(other))
        found = max(found, _relative(apart, max(_largest(gradient), _SMALL * largest)))
    return found


def moved_alike(first: tuple[Outcome, Outcome], second: tuple[Outcome, Outcome], count: int) -> Difference:
    """What changed between two runs, and by the same between two others in float64: rounding would be another one."""
    found = compare_outcomes(*second, count)
    held = [outcome.tensors() for outcome in (*first, *second)]

    def alike(name: str) -> bool:
        if not all(name in tensors for tensors in held):
            return False
        a, b, c, d = (dense(tensors[name]).double() for tensors in held)
        return float((b - a - (d - c)).norm()) <= _ALIKE * float((d - c).norm())

    if not alike("the loss"):
        found.loss = None
    found.gradients = {
        name: size for name, size in found.gradients.items() if alike(f"the gradient of {name}")
    }
    return found


def _largest(gradient: Any) -> float:
    found = dense(gradient)
    return found.abs().max().item() if found.numel() else 0.0


def _relative(apart: float, size: float) -> float:
    """How large a difference is beside a number; infinite if that cannot be said."""
    return apart / size if size and math.isfinite(apart) and math.isfinite(size) else math.inf


def not_close(a: Tensor, b: Tensor, scale: float = 0.0) -> bool:
    """Whether two tensors of one shape differ by more than rounding; NaN equals NaN."""
    relative = _RELATIVE.get(a.dtype, 1e-4)
    a, b = a.double(), b.double()
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()):
        return True
    a, b = a[finite], b[finite]
    if not a.numel():
        return False
    size = max(float(a.abs().max()), float(b.abs().max()), scale)
    return float((a - b).abs().max()) > relative * size


def compare_outcomes(before: Outcome, after: Outcome, count: int) -> Difference:
    """Loss and gradients of two runs on other rows, or on rows of another length.

    A gradient that is absent counts as zero. Gradients of the batch, and of leaves that the step makes out of it, have
    the ``count`` samples along some dimension, or other shapes: they move with the samples, and are not compared.
    """
    difference = Difference()
    if before.loss is not None and after.loss is not None:
        losses = before.loss.reshape(()), after.loss.reshape(())
        if not_close(*losses):
            difference.loss = (float(losses[0]), float(losses[1]))
    pairs: dict[str, list[Tensor]] = {}
    for name in before.gradients.keys() | after.gradients.keys():
        pair = [dense(outcome.gradients[name]) for outcome in (before, after) if name in outcome.gradients]
        if name in before.own | after.own and (len(pair) < 2 or count in pair[0].shape):
            continue
        pairs[name] = pair if len(pair) == 2 else [*pair, torch.zeros_like(pair[0])]
    sizes = [float(gradient.abs().max()) for pair in pairs.values() for gradient in pair if gradient.numel()]
    scale = _SMALL * max((size for size in sizes if size == size), default=0.0)
    for name, (first, second) in pairs.items():
        if first.shape == second.shape and not_close(first, second, scale):
            difference.gradients[name] = float((first.double() - second.double()).abs().max())
    return difference
