"""The experiments that change contents of padding, and leave all shapes as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from maskgrad.doctor.batches import Key, fields, replaced, tensor_of
from maskgrad.doctor.case import (
    IN_DOUBLE,
    SMALL,
    Difference,
    Examination,
    PerturbedInput,
    compare,
    ends_of,
    randomize_padding,
    run_perturbed,
)
from maskgrad.doctor.findings import Finding
from maskgrad.doctor.inferred import same_part
from maskgrad.doctor.modes import Guarded
from maskgrad.doctor.padding import Padding
from maskgrad.doctor.recorder import Event, Origin, Origins, Recorder, has_nan
from maskgrad.doctor.reshaped import first_difference, log, raised, where_real
from maskgrad.doctor.runner import Outcome, names_of
from maskgrad.doctor.twins import Twins
from maskgrad.doctor.variants import KINDS, other_contents
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["findings_of", "leak", "nan_under_mask", "padding_leak"]


@dataclass
class Whole:
    """What the step as it is gives with other contents in its batch."""

    difference: Difference
    #: the other batch; None if only the tables look up others
    batch: Any = None
    #: why the step fails on that batch, so that nothing can be confirmed
    failure: str = ""


def as_a_whole(case: Examination, hidden: PerturbedInput, kind: str, seed: int, mode: Twins) -> Whole | None:
    """What the step as it is gives with only the padding rewritten; None if it cannot be rewritten there.

    A program that tests ids for padding keeps its ids, and its tables look up others. Labels of -100 and NaN say
    themselves that they are padding: rewritten, they would be none.
    """
    batch = case.runner.batch if hidden.batch is None else hidden.batch
    inside, new, rest = fields(batch), dict[Key, Any](), list[Padding]()
    looked_up = list[tuple[Tensor, Tensor]]()
    for padding in hidden.paddings:
        held = inside[padding.key]
        is_label = padding.source.startswith(("labels", "ignore_index")) or padding.source == "NaN"
        if is_label or not isinstance(held, Tensor):
            rest.append(padding)
            continue
        other = other_contents(held.detach(), padding.entries(held), kind, seed)
        if other is None:
            continue
        if held.is_floating_point() and mode.saw_sentinels:
            return None
        if mode.saw_sentinels or padding.source.startswith(("NaN", "padding_idx", "the id")):
            looked_up.append((held, other))
        else:
            new[padding.key] = other.requires_grad_(held.requires_grad)
    if not new and not looked_up:
        return None
    try:
        before = case.runner.run(Guarded(), batch, after=Outcome.cloned)
        with _other_rows(case.runner.roots, looked_up) as served:
            after = case.runner.run(Guarded(), replaced(batch, new), after=Outcome.cloned)
    except Exception as error:  # such as ids that a table does not have
        return Whole(Difference(), failure=f"the step fails on changed data ({raised(error)})")
    # what only overflows is no fault
    if len(served) < len(looked_up) or (kind == "large" and after.has_nan()):
        return None
    whole = Whole(compare(before, after, count=case.count), replaced(batch, new) if new else None)
    if whole.difference or not rest:
        return whole
    # what was not rewritten may be what the twins saw
    return whole if mode.not_followed and not run_perturbed(case, rest, kind, seed, batch)[0] else None


@contextlib.contextmanager
def _other_rows(roots: Iterable[nn.Module], ids: Sequence[tuple[Tensor, Tensor]]) -> Iterator[set[int]]:
    """Let tables look up other ids for a while; yields which pairs of ids they met."""
    served: set[int] = set()

    def look_up(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given: Any = args[0] if args else kwargs.get("input")
        for number, (own, other) in enumerate(ids if isinstance(given, Tensor) else ()):
            found = same_part(given, own, other)
            if found is not None:
                served.add(number)
                return ((found[0], *args[1:]), kwargs) if args else (args, {**kwargs, "input": found[0]})
        return None

    inside = [module for root in roots if ids for module in root.modules()]
    with contextlib.ExitStack() as hooks:
        for module in [module for module in inside if isinstance(module, nn.Embedding)]:
            hooks.enter_context(module.register_forward_pre_hook(look_up, with_kwargs=True))
        yield served


def padding_leak(case: Examination) -> None:
    """Other contents of the same shape, until something differs."""
    leak(case, PerturbedInput("padding-leak", case.paddings))


def leak(case: Examination, hidden: PerturbedInput) -> bool:
    """Whether other contents of what is hidden change loss or gradients; the lines are added to the report.

    What the twins see the step as it is has to confirm, with only that rewritten; what they cannot follow it tells.
    """
    inside = fields(case.runner.batch)
    # ids have no size
    large = any(tensor_of(inside[padding.key]).is_floating_point() for padding in hidden.paddings)
    for seed, kind in enumerate(("numbers", "large") if large else ("numbers",)):
        difference, mode = _with_other_contents(case, hidden, kind, seed)
        whole = as_a_whole(case, hidden, kind, seed, mode) if difference or mode.not_followed else None
        if whole is None:
            if not difference and mode.not_followed:
                why = f"{mode.not_followed[0][1]}, and the whole step cannot be compared"
                case.report.skip(hidden.kind, why)
        elif whole.failure:  # what only the twins show is a note at its line
            for found in _locate(case, hidden, kind, seed, difference) if difference else ():
                case.report.note(hidden.kind, f"not confirmed: {found.message}", found)
            case.report.skip(hidden.kind, f"{whole.failure}, so that no difference can be confirmed")
            continue
        elif whole.difference:
            lost = mode.not_followed and (difference is None or difference.loss is None)
            if not difference or (lost and whole.difference.loss):
                case.report.add(_not_followed(case, hidden, kind, mode, whole))
                return True
        elif difference and difference.relative >= SMALL:
            case.report.note(hidden.kind, "not confirmed: the step gives the same result on changed data")
            continue
        if not difference:
            continue
        if difference.is_doubtful:
            why = f"a relative difference of {difference.relative:.0e} may be rounding"
            case.report.skip(hidden.kind, why, IN_DOUBLE)
            continue
        findings = list[Finding]()
        if case.gives_nan and any(_holds_no_numbers(case, padding) for padding in hidden.paddings):
            hidden = replace(hidden, kind="nan-under-mask")
            findings = nan_findings(case, "nan-under-mask")
        if not any(finding.operation for finding in findings):
            # also if the batch's own NaN went straight into the loss: the line is that at which real entries take it up
            findings = _locate(case, hidden, kind, seed, difference)
        case.report.add(findings)
        return True
    return False


def _not_followed(
    case: Examination, hidden: PerturbedInput, kind: str, mode: Twins, whole: Whole
) -> list[Finding]:
    """What the twins could not follow reaches the result: the first line that differs where it is real."""
    place, lost = mode.not_followed[0]
    (found,) = findings_of([], hidden, kind, whole.difference)
    entry = None
    if whole.batch is not None and place is None:
        align = where_real([padding.mask for padding in hidden.paddings])
        entry = first_difference(log(case, hidden.batch), log(case, whole.batch), align)
    message = f"{lost}; {found.message}"
    return [Finding.at(place if entry is None else entry, hidden.kind, message)]


def _with_other_contents(
    case: Examination, hidden: PerturbedInput, kind: str, seed: int = 0
) -> tuple[Difference | None, Twins]:
    """A run with other contents of what is hidden: what differs, None without a change."""
    name = hidden.kind
    found, changed, mode = run_perturbed(case, hidden.paddings, kind, seed, hidden.batch)
    if not changed:
        return None, mode
    nothing = "nothing else changed"
    if name != "nan-under-mask" and mode.not_followed:
        nothing += ", as far as it was tracked: see the notes"
        for place, why in mode.not_followed:
            case.report.note(name, why, place)
    where = "" if hidden.noun == "padding" else f"for {hidden.others}, "
    words = f"{where}{KINDS[kind]} in {', '.join(map(str, changed))}"
    case.report.tried(name, words, found.words() or nothing, changed)
    return found, mode


def _locate(
    case: Examination, hidden: PerturbedInput, kind: str, seed: int, difference: Difference
) -> list[Finding]:
    """Repeat a run with records, and say where the difference enters.

    Large numbers that only overflow, in an exponential for instance, are no fault: what NaN in the padding would do
    is the question of an experiment of its own.
    """
    if kind == "large" and not difference.finite:
        return []
    masks = [padding.mask for padding in hidden.paddings]
    recorder = Recorder(masks, names_of(case.runner.roots))
    randomize_padding(recorder, case.runner.batch, hidden.paddings, kind, seed)
    read = lambda made: recorder.mixing(ends_of(made, difference))  # noqa: E731
    found: list[Event] = case.runner.run(recorder, hidden.batch, after=read)
    return findings_of(found, hidden, kind, difference)


def findings_of(found: list[Event], hidden: PerturbedInput, kind: str, difference: Difference) -> list[Any]:
    """One finding for each line at which it is mixed into what is seen; one without a line if none is known."""
    changed = ", ".join(str(padding.key) for padding in hidden.paddings)
    message = f"with {KINDS[kind]} in the {hidden.noun} of {changed}, {difference.words()}"
    if 0 < difference.relative < SMALL:
        message += f" (relative difference {difference.relative:.1e})"
    if not found:
        return [Finding(hidden.kind, message)]
    unique = {(event.place, event.module if event.place is None else ""): event for event in reversed(found)}
    how = f"mixes {hidden.noun} into {hidden.others}: {message}"
    return [Finding.at(event, hidden.kind, f"{event.operation} {how}") for event in reversed(unique.values())]


def nan_under_mask(case: Examination) -> None:
    """NaN and infinity in the padding; a fault only where padding holds such values, or where it was asked for."""
    known = case.report.kinds()
    if case.gives_nan:  # before anything is changed
        masks = [padding.mask for padding in case.paddings if padding.mask.ndim > 1]
        if not {"nan-under-mask", "empty-row"} & set(known):
            empty = any(not bool(mask.flatten(1).any(1).all()) for mask in masks)
            case.report.add(nan_findings(case, "empty-row" if empty else "nan-under-mask"))
        case.report.tried("nan-under-mask", "nothing", "the unmodified program gives NaN")
    elif "padding-leak" not in known:  # else NaN takes the way that is known already
        every = "nan-under-mask" in case.asked
        paddings = [padding for padding in case.paddings if every or _holds_no_numbers(case, padding)]
        hidden = PerturbedInput("nan-under-mask", paddings)
        for kind in ("nan", "inf"):
            difference, _ = _with_other_contents(case, hidden, kind)
            if difference:
                case.report.add(_locate(case, hidden, kind, 0, difference))
                return


def _holds_no_numbers(case: Examination, padding: Padding) -> bool:
    """Whether padding has NaN or infinity in this batch, or is of a MaskedTensor, under which anything may lie."""
    held = fields(case.runner.batch)[padding.key]
    tensor = tensor_of(held)
    finite = bool(tensor[~padding.entries(tensor)].isfinite().all())
    return isinstance(held, MaskedTensor) or not finite


def nan_findings(case: Examination, kind: str) -> list[Finding]:
    """The operations from which the NaN in loss and gradients come."""
    trace = Origins()

    def read(outcome: Outcome) -> tuple[bool, list[Origin], list[str]]:
        with_nan = {name: gradient for name, gradient in outcome.gradients.items() if has_nan(gradient)}
        if outcome.loss is not None and has_nan(outcome.loss):
            return True, trace.origins([outcome.loss]), list(with_nan)
        return False, trace.origins(with_nan.values()), list(with_nan)

    lost, origins, names = case.runner.run(trace, after=read)
    if not lost and not names:
        return []
    others = f" and {len(names) - 1} more hold NaN" if len(names) > 1 else " holds NaN"
    what = "the loss is NaN" if lost else f"the loss is finite, but the gradient of {names[0]}{others}"
    when = "with a sample that is all padding " if kind == "empty-row" else ""
    made = [origin for origin in origins if origin.operation] or origins
    where = {True: "in the backward pass of this line", False: "here"}
    words = {at: f"{at.operation or 'the batch'} makes NaN {where[at.backward]}" for at in made}
    return [Finding.at(origin, kind, f"{when}{what}: {words[origin]}") for origin in words][:3]
