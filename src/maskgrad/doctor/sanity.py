"""What makes an examination impossible: a step that ignores its batch, or gives something else each time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from maskgrad.doctor.batches import fields, ragged, tensor_of
from maskgrad.doctor.equality import same
from maskgrad.doctor.frames import Place
from maskgrad.doctor.garbage import other_contents
from maskgrad.doctor.steady import Entry, Log
from maskgrad.doctor.trial import Outcome, Trial
from maskgrad.doctor.twins import Twins
from maskgrad.errors import ExaminationError

__all__ = ["check_step"]


def check_step(trial: Trial, base: dict[str, Tensor], again: dict[str, Tensor]) -> None:
    """Refuse a step of which nothing can be said.

    Raises:
        ExaminationError: two runs from one state differ, or other contents of the whole batch change nothing.
    """
    if base.keys() != again.keys() or not all(same(base[name], again[name]) for name in base):
        name = next(
            (name for name in base if name not in again or not same(base[name], again[name])), "a gradient"
        )
        raise ExaminationError(
            f"step: it is not deterministic: {name} differs between two runs from one state{_who_draws(trial)}; "
            f"draw random numbers with torch, numpy.random or random, or give the step its numbers in the batch"
        )
    # NaN stays NaN whatever the batch holds: the next experiments say where it comes from
    lost = any(tensor.is_floating_point() and bool(tensor.isnan().any()) for tensor in base.values())
    if (fields(trial.batch) or ragged(trial.batch)) and not lost and not _depends(trial):
        raise ExaminationError(
            "step: the loss does not depend on the batch: other contents of all its tensors change neither loss nor "
            "gradients; use the argument of the step, `def step(batch): return loss_of(model(batch['x']))`"
        )


def _depends(trial: Trial) -> bool:
    mode = Twins()
    unreal = 0
    if any(isinstance(held, Tensor) for held in ragged(trial.batch).values()):
        return True  # operations on nested tensors are not followed
    for held in ragged(trial.batch).values():
        data = held.data if isinstance(held, PackedSequence) else held._values.detach()
        other = _rewritten(data)
        if other is not None:
            mode.set_twin(data, other)
            unreal += 1
    for place, field in enumerate(fields(trial.batch).values()):
        tensor = tensor_of(field).detach()
        if tensor.layout is not torch.strided:
            return True
        other = _rewritten(tensor, place)
        if other is not None:
            mode.set_twin(tensor, other)
            unreal += 1
    if not unreal:
        return True

    def differs(outcome: Outcome) -> bool:
        ends = [*outcome.gradients.values(), *([outcome.loss] if outcome.loss is not None else [])]
        return any(mode.twin(tensor) is not None for tensor in ends)

    depends: bool = trial.run(mode, after=differs)
    return depends or bool(mode.refusals)


def _rewritten(tensor: Tensor, place: int = 0) -> Tensor | None:
    """Other contents for a whole tensor that every table still knows: integers change places.

    Tokens and their labels move by different distances: together they would be the same tokens in another order.
    """
    if tensor.is_floating_point() or tensor.is_complex():
        return other_contents(tensor, torch.zeros_like(tensor, dtype=torch.bool), "numbers")
    if tensor.dtype == torch.bool:
        return ~tensor
    if tensor.numel() < 2:
        return None
    return tensor.flatten().roll(1 + place % (tensor.numel() - 1)).reshape(tensor.shape)


def _who_draws(trial: Trial) -> str:
    """The first operation that gives something else in the second of two runs."""
    logs: list[list[Entry]] = []
    for _ in range(2):
        log = Log()
        trial.run(log)
        logs.append(log.entries)
    for first, second in zip(*logs, strict=False):
        if first.operation != second.operation or not all(
            same(a, b) for a, b in zip(first.outputs, second.outputs, strict=False)
        ):
            return f", first in {first.operation}{_at(first.place)}"
    return ""


def _at(place: Place | None) -> str:
    return f" at {place.file}:{place.line}: {place.code}" if place else ""
