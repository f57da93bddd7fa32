"""The examination of a step: its experiments one after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from maskgrad.doctor.batches import ragged
from maskgrad.doctor.coupling import sample_coupling
from maskgrad.doctor.denominators import denominator, takes_parts
from maskgrad.doctor.experiments import Examination, nan_under_mask, padding_leak
from maskgrad.doctor.origins import has_nan
from maskgrad.doctor.ranks import exchanged
from maskgrad.doctor.recognition import recognised
from maskgrad.doctor.recorded import recorded_step
from maskgrad.doctor.report import Report
from maskgrad.doctor.reshaped import empty_row, order, padding_length
from maskgrad.doctor.sanity import check_step
from maskgrad.doctor.trial import Outcome, Trial
from maskgrad.doctor.twins import Guarded
from maskgrad.doctor.variants import rows_of
from maskgrad.errors import ExaminationError

__all__ = ["EXPERIMENTS", "examine"]

#: name, what is done, whether it needs padding; in this order
EXPERIMENTS: dict[str, tuple[Callable[[Examination], None], bool]] = {
    "padding-leak": (padding_leak, True),
    "nan-under-mask": (nan_under_mask, False),
    "padding-length": (padding_length, True),
    "empty-row": (empty_row, True),
    "denominator": (denominator, False),
    "order": (order, False),
    "sample-coupling": (sample_coupling, False),
    "recorded-step": (recorded_step, False),
}
_OF_THE_RECORDED_STEP = (
    "densified-gradient", "silent-hook", "unused-parameter", "zero-gradient", "stale-rows",
)  # fmt: skip


def examine(
    step: Callable[[Any], Any],
    batch: Any,
    *,
    padding: Mapping[Any, Any] | None = None,
    model: nn.Module | None = None,
    experiments: Iterable[str] | None = None,
    quick: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    parts: Any = None,
    required: bool = False,
) -> Report:
    r"""Look for places in a program where padding reaches what counts, and for what goes with it.

    The step is run several times, each time from the same state, with other contents where the batch has padding, with
    one more column of padding, with its samples in another order. Where nothing but padding changed, loss and
    gradients must be what they were. If they are not, the line is named at which real entries first depend on padding.
    Parameters, gradients, buffers, states of optimizers and of random number generators are afterwards what they were.
    ``torch.compile`` is off inside. Under DistributedDataParallel each rank examines its own batch, and nothing is sent
    but the findings, at the end: all ranks return one report.

    Args:
        step: function of the batch that returns the scalar loss (or an object with a ``loss``), or that calls
            ``backward`` itself. With a keyword ``parts`` it is told the sizes of the parts to split the batch into.
        batch: dict or other mapping, tuple, list, dataclass or tensor.
        padding: for each key of the batch (position in a tuple) a Boolean mask, True where entries are real, of the
            leading dimensions of the tensor; or the key of such a mask in the batch. By default it is recognised: from
            MaskedTensors, masks, lengths, labels of -100, and NaN.
        model: module whose parameters and layers are named; by default those that the step calls.
        experiments: names of experiments; all by default. ``nan-under-mask`` by name makes a fault of any way that a
            NaN could take, not only where padding holds such values.
        quick: make the experiment ``padding-leak`` alone.
        progress: called with the name of each experiment, its number, and how many there are.
        parts: how the batch is split for ``denominator``: a number of parts, or their sizes. A step with a keyword
            ``parts`` is told the sizes, and must give what it gives for ``parts=[size of the whole batch]``. To any
            other the parts are given one by one: either their sum, or their mean weighed by samples, must be what the
            whole batch gives, loss and all gradients, and no other weights may fit as well.
        required: raise if padding is needed and none is known, instead of noting it.

    Returns:
        the report; it is true if nothing was found.

    Raises:
        ExaminationError: the step does not depend on the batch, is not deterministic, or returns no scalar; a mask
            does not fit; an experiment is unknown; parameters are sharded; another rank could not be examined.

    Example:
        >>> import torch, maskgrad as mg
        >>> layer = torch.nn.Linear(2, 1)
        >>> def step(batch):
        ...     return layer(batch["x"]).mean()
        >>> batch = {"x": torch.ones(2, 3, 2), "mask": torch.tensor([[True, True, True], [True, False, False]])}
        >>> report = mg.doctor.examine(step, batch, quick=True)
        >>> report.ok, [finding.kind for finding in report.findings]
        (False, ['padding-leak'])
    """
    chosen = _chosen(experiments, quick=quick)
    trial = Trial(step, batch, model)
    try:
        result: Report | Exception = _examined(trial, padding, experiments, chosen, progress, parts, required)
    except Exception as error:
        if trial.replicas() is None:
            raise
        result = error
    replicas: Any = trial.replicas()
    if replicas is not None:
        # whatever a rank has found, all others wait for it here, and nowhere else
        return exchanged(
            result, getattr(replicas, "process_group", None) or getattr(replicas, "_group", None)
        )
    assert isinstance(result, Report)
    return result


def _examined(
    trial: Trial,
    padding: Mapping[Any, Any] | None,
    experiments: Iterable[str] | None,
    chosen: list[str],
    progress: Callable[[str, int, int], None] | None,
    parts: Any,
    required: bool,
) -> Report:
    batch = trial.batch
    paddings = recognised(batch, padding)
    if takes_parts(trial.step):
        trial.step = functools.partial(trial.step, parts=[rows_of(batch, paddings)])  # type: ignore[call-arg]
    base, again = (trial.run(Guarded(), after=_values) for _ in range(2))
    check_step(trial, base, again)
    case = Examination(
        trial,
        paddings,
        Report(padding={str(found.key): found.source for found in paddings}),
        frozenset() if experiments is None else frozenset(chosen),
        parts,
        {"nan": any(has_nan(tensor) for tensor in base.values() if tensor.is_floating_point())},
    )
    _note_ragged(case)
    if not paddings and any(EXPERIMENTS[name][1] for name in chosen):
        _nothing_is_padded(case, required=required)
        chosen = [name for name in chosen if not EXPERIMENTS[name][1]]
    _note_compilation(case)
    for number, name in enumerate(chosen):
        if progress is not None:
            progress(name, number, len(chosen))
            trial.rewind()
        EXPERIMENTS[name][0](case)
    if progress is not None:
        progress("", len(chosen), len(chosen))
    return case.report


def _chosen(experiments: Iterable[str] | None, *, quick: bool) -> list[str]:
    if experiments is None:
        return ["padding-leak"] if quick else list(EXPERIMENTS)
    if isinstance(experiments, str):
        experiments = [experiments]
    wanted = ["recorded-step" if name in _OF_THE_RECORDED_STEP else name for name in experiments]
    for name in wanted:
        if name not in EXPERIMENTS:
            known = ", ".join([*EXPERIMENTS, *_OF_THE_RECORDED_STEP])
            raise ExaminationError(f"experiments: {name!r} is none of {known}")
    return [name for name in EXPERIMENTS if name in wanted]


def _values(outcome: Outcome) -> dict[str, torch.Tensor]:
    """Loss and gradients, before memory is restored."""
    values = {f"the gradient of {name}": gradient.clone() for name, gradient in outcome.gradients.items()}
    return values if outcome.loss is None else {"the loss": outcome.loss.clone(), **values}


def _note_ragged(case: Examination) -> None:
    keys = ragged(case.trial.batch)
    if keys:
        case.note(
            "padding",
            f"{', '.join(map(repr, keys))}: samples of their own lengths, one after the other, hold no padding, and "
            "none can leak from there; no garbage is written into them, no column added, no sample rewritten",
        )


def _nothing_is_padded(case: Examination, *, required: bool) -> None:
    message = (
        "padding: none was recognised in the batch; say which entries are real with padding={key: mask} "
        "(True = real) or padding={key: key_of_the_mask}"
    )
    if required:
        raise ExaminationError(message)
    if not ragged(case.trial.batch):
        case.note("padding", message)


def _note_compilation(case: Examination) -> None:
    for root in case.trial.roots:
        if any(type(module).__name__ == "OptimizedModule" for module in root.modules()):
            case.note("torch.compile", "is off during the examination: the program is run as it is written")
            return
