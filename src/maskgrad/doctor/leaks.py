"""The experiments that write other garbage over the padding and leave all shapes as they are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.doctor.equality import differing
from maskgrad.doctor.findings import Finding
from maskgrad.doctor.garbage import KINDS, other_contents
from maskgrad.doctor.origins import Origin, Origins, stands_at_padding
from maskgrad.doctor.recognition import Padding
from maskgrad.doctor.remedies import remedy_for
from maskgrad.doctor.trail import Event, Recorder
from maskgrad.doctor.trial import Outcome, Trial
from maskgrad.doctor.twins import Twins

__all__ = ["Difference", "compare", "compare_tensors", "findings_of", "garble", "locate"]


@dataclass
class Difference:
    """What differs between a run and its twin."""

    loss: tuple[float, float] | None = None
    gradients: dict[str, float] = field(default_factory=dict)
    #: whether some entry that differs is infinite or NaN in neither run
    finite: bool = False

    def __bool__(self) -> bool:
        return self.loss is not None or bool(self.gradients)

    def words(self) -> str:
        """The difference as part of a sentence."""
        parts = []
        if self.loss is not None:
            parts.append(f"the loss is {self.loss[0]:.6g}, and {self.loss[1]:.6g} with other padding")
        if self.gradients:
            worst = max(self.gradients, key=lambda name: _size(self.gradients[name]))
            others = f" and {len(self.gradients) - 1} more" if len(self.gradients) > 1 else ""
            parts.append(f"the gradient of {worst}{others} changes by up to {self.gradients[worst]:.3g}")
        return "; ".join(parts)

    def numbers(self) -> dict[str, Any]:
        """The difference as plain data."""
        return {
            "loss": None if self.loss is None else list(self.loss),
            "gradients": dict(self.gradients),
        }


def _size(number: float) -> float:
    return float("inf") if number != number else number


def garble(mode: Twins, batch: Any, paddings: list[Padding], kind: str, seed: int = 0) -> list[Key]:
    """Give the padded tensors of a batch twins with other garbage; the keys of those that have one."""
    inside, done = fields(batch), []
    for padding in paddings:
        tensor = tensor_of(inside[padding.key]).detach()
        real = padding.entries(tensor)
        other = other_contents(tensor, real, kind, seed)
        if other is None:
            continue
        mode.set_twin(tensor, other, marker=_is_marker(tensor, real))
        if isinstance(mode, Recorder):
            mode.begin(tensor, real)
        done.append(padding.key)
    return done


def _is_marker(tensor: Tensor, real: Tensor) -> bool:
    """Integers, and numbers that are all the same: a program may test for what stands there."""
    if not tensor.is_floating_point():
        return True
    entries, real = tensor.reshape(-1), real.reshape(-1)
    for some in (slice(256), slice(None)):  # a few tell nearly always
        padded = entries[some][~real[some]]
        if padded.numel() and not bool((padded == padded[0]).all()):
            return False
    return padded.numel() > 0


def compare(mode: Twins, outcome: Outcome, trial: Trial, paddings: list[Padding]) -> Difference:
    """Loss and gradients of a trial beside their twins; gradients of the batch itself where it is real."""
    inside = {id(tensor_of(field)): key for key, field in fields(trial.batch).items()}
    by_key = {padding.key: padding for padding in paddings}
    real = {}
    for name, leaf in outcome.leaves.items():
        padding = by_key.get(inside.get(id(leaf)))
        if padding is not None:
            real[name] = padding
    return compare_tensors(mode, outcome.loss, outcome.gradients, real)


def compare_tensors(
    mode: Twins, loss: Tensor | None, gradients: dict[str, Tensor], real: dict[str, Padding] | None = None
) -> Difference:
    """A loss and gradients by name beside their twins, some only where they are real.

    What is no scalar, such as the root of a backward pass inside a checkpoint, may hold padding: its gradients tell.
    """
    difference = Difference()
    if loss is not None and loss.numel() == 1:
        twin = mode.twin(loss)
        if twin is not None and bool(differing(loss, twin).any()):
            difference.loss = (float(loss), float(twin))
            difference.finite |= math.isfinite(float(loss) - float(twin))
    for name, gradient in gradients.items():
        twin = mode.twin(gradient)
        if twin is None:
            continue
        dense, other = (t.to_dense() if t.layout is not torch.strided else t for t in (gradient, twin))
        apart = (dense - other).abs()
        if real and name in real:
            apart *= real[name].entries(apart)
        worst = apart.max().item() if apart.numel() else 0.0
        if worst != worst:
            # infinity minus itself, or zero times what is not real
            unequal = differing(dense, other)
            if real and name in real:
                unequal &= real[name].entries(unequal)
            if not bool(unequal.any()):
                continue
            apart = apart[unequal]
            worst = apart.max().item()
        if worst:
            difference.gradients[name] = worst
            difference.finite |= bool((apart.isfinite() & (apart != 0)).any())
    return difference


def locate(
    trial: Trial, paddings: list[Padding], kind: str, seed: int, finding_kind: str, difference: Difference
) -> tuple[list[Finding], Recorder]:
    """Repeat a run with records, and say where the difference enters.

    Large numbers that only overflow, in an exponential for instance, are no fault: what NaN in the padding would do
    is told by an experiment of its own.
    """
    recorder = Recorder([padding.mask for padding in paddings], trial.modules())
    if kind == "large" and not difference.finite:
        return [], recorder
    garble(recorder, trial.batch, paddings, kind, seed)

    def events(outcome: Outcome) -> list[Event]:
        if difference.loss is not None and outcome.loss is not None:
            return list(recorder.mixing([outcome.loss]))
        ends = [outcome.gradients[name] for name in difference.gradients if name in outcome.gradients]
        return list(recorder.mixing(ends))

    found: list[Event] = trial.run(recorder, after=events)
    findings = findings_of(found, paddings, kind, finding_kind, difference)
    if difference.loss is None and found:
        findings = _at_the_gradient(trial, paddings, finding_kind, difference) or findings
    return findings, recorder


def _at_the_gradient(
    trial: Trial, paddings: list[Padding], finding_kind: str, difference: Difference
) -> list[Finding]:
    """The loss is right and gradients are not: where a gradient first stands at padding."""
    trace = Origins(stands_at_padding([padding.mask for padding in paddings]), backward_only=True)

    def read(outcome: Outcome) -> list[Origin]:
        return trace.origins(
            outcome.gradients[name] for name in difference.gradients if name in outcome.gradients
        )

    origins: list[Origin] = trial.run(trace, after=read)
    return [
        Finding.at(
            origin.place,
            finding_kind,
            f"the backward pass of this line ({origin.operation}) gives a gradient to padding: the loss is right, but "
            f"{difference.words()}",
            remedy=remedy_for(finding_kind, origin),
            operation=origin.operation,
            affected=difference.numbers(),
        )
        for origin in {origin.place: origin for origin in origins}.values()
        if origin.place is not None
    ]


def findings_of(
    found: list[Event], paddings: list[Padding], kind: str, finding_kind: str, difference: Difference
) -> list[Finding]:
    """One finding for each line at which padding is mixed into what is real; one without a line if none is known."""
    changed = ", ".join(str(padding.key) for padding in paddings)
    message = f"with {KINDS[kind]} in the padding of {changed}, {difference.words()}"
    if not found:
        return [Finding(finding_kind, message, affected=difference.numbers())]
    unique = {(event.place, event.module if event.place is None else ""): event for event in reversed(found)}
    return [
        Finding.at(
            event.place,
            finding_kind,
            f"{event.operation} mixes padding into what is real: {message}",
            remedy=remedy_for(finding_kind, event),
            module=event.module,
            operation=event.operation,
            affected={**difference.numbers(), "share": event.share},
        )
        for event in reversed(unique.values())
    ]
