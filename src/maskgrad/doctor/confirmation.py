"""Whether a difference that twins saw, or could not see, is one: the step as a whole, and float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.batches import Key, fields, replaced
from maskgrad.doctor.case import Examination, Hidden, garble
from maskgrad.doctor.comparison import Difference, compare_outcomes, compare_twins, furthest
from maskgrad.doctor.modes import Guarded
from maskgrad.doctor.precision import DOUBTFUL, SHRINKS, SMALL_SUMS, batch_in_double, in_double
from maskgrad.doctor.trial import Outcome
from maskgrad.doctor.twins import Twins
from maskgrad.doctor.variants import other_contents, selected
from maskgrad.errors import ExaminationError

__all__ = ["as_a_whole", "is_rounding"]


def _as_order_rounds(case: Examination, hidden: Hidden, difference: Difference, error: Exception) -> bool:
    """Whether a difference is as small as the one that another order of the samples makes, or as float32 rounds."""
    usual = SMALL_SUMS * torch.finfo(torch.float32).eps
    if case.count > 1:
        batch = case.trial.batch if hidden.batch is None else hidden.batch
        rows = torch.arange(case.count).flip(0)
        try:
            before, after = (
                case.trial.run(Guarded(), given, after=Outcome.cloned)
                for given in (batch, selected(batch, rows, case.count))
            )
            usual = max(usual, 4 * furthest(before, after))
        except Exception:  # rows that must stand in their order
            usual = max(usual, 0.0)
    why = f"(float64 cannot be tried: {type(error).__name__}: {str(error).partition(chr(10))[0]})"
    if difference.relative > usual:
        case.note(hidden.kind, f"{difference.relative:.0e} of loss or gradients is more than rounding {why}")
        return False
    case.note(
        hidden.kind, f"{difference.relative:.0e} of loss or gradients is as much as float32 rounds {why}"
    )
    return True


def as_a_whole(
    case: Examination, hidden: Hidden, kind: str, seed: int, mode: Twins, difference: Difference | None
) -> Difference | None:
    """What the step as it is gives with the garbage in its batch; None where that would say nothing new.

    It is asked where twins could not follow an operation, and where they saw a difference that is no rounding.
    """
    if not mode.not_followed and not (difference and difference.relative >= DOUBTFUL):
        return None
    batch = case.trial.batch if hidden.batch is None else hidden.batch
    inside, new = fields(batch), dict[Key, Any]()
    for padding in hidden.paddings:
        held = inside[padding.key]
        if padding.source.startswith("labels") or padding.source == "NaN" or not isinstance(held, Tensor):
            continue  # what stands there says that it is not to be counted
        other = other_contents(held.detach(), padding.entries(held), kind, seed)
        if other is not None:
            new[padding.key] = other.requires_grad_(held.requires_grad)
    if not new:
        return None
    try:
        before, after = (
            case.trial.run(Guarded(), given, after=Outcome.cloned) for given in (batch, replaced(batch, new))
        )
    except ExaminationError:
        raise
    except Exception:  # a table does not know the garbage, for instance
        return None
    return compare_outcomes(before, after, case.count)


def is_rounding(case: Examination, hidden: Hidden, kind: str, seed: int, difference: Difference) -> bool:
    """Whether little differs, and next to nothing in float64; where a program cannot run in that, it counts."""
    if difference.relative >= DOUBTFUL:
        return False
    mode, batch = Twins(), case.trial.batch if hidden.batch is None else hidden.batch
    try:
        with in_double(case.trial.roots):
            batch = batch_in_double(batch)
            garble(mode, batch, hidden.paddings, kind, seed)
            wide: Difference = case.trial.run(
                mode, batch, after=lambda outcome: compare_twins(mode, outcome, case.trial, hidden.paddings)
            )
    except Exception as error:
        return _as_order_rounds(case, hidden, difference, error)
    if wide and wide.relative > SHRINKS * difference.relative:
        return False
    case.note(
        hidden.kind,
        f"{difference.relative:.0e} of loss or gradients is rounding: in float64 it is next to nothing",
    )
    return True
