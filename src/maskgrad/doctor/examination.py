"""The examination of a step: its experiments one after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from maskgrad.doctor.batches import ragged
from maskgrad.doctor.case import Examination
from maskgrad.doctor.inferred import ObservedUse
from maskgrad.doctor.influence import document_alone, document_leak, future_leak
from maskgrad.doctor.inventory import inventory_of
from maskgrad.doctor.leaks import nan_under_mask, padding_leak
from maskgrad.doctor.modes import Guarded, module_calls
from maskgrad.doctor.packed import documents_of
from maskgrad.doctor.padding import SAYS_PADDING, with_given
from maskgrad.doctor.report import Report
from maskgrad.doctor.reshaped import denominator, first_difference, log, order, padding_length, where_real
from maskgrad.doctor.roles import Roles
from maskgrad.doctor.runner import Outcome, StepRunner, parameters_of
from maskgrad.errors import ExaminationError

__all__ = ["EXPERIMENTS", "examine"]


def _gradients(case: Examination) -> None:
    """Parameters without a gradient, or with one that is zero, or dense where it could be sparse: meant, or not."""
    found: dict[tuple[str, str], list[str]] = {}
    first: Outcome = case.base["first"]
    modules = [module for root in case.runner.roots for module in root.modules()]
    sparse = {id(module.weight) for module in modules if getattr(module, "sparse", False)}
    for name, parameter in parameters_of(case.runner.roots):
        gradient = first.gradients.get(name)
        if not parameter.requires_grad or not parameter.numel():
            continue
        if gradient is None:
            said = "got no gradient", "them to the loss, or .requires_grad_(False)"
        elif gradient.layout is torch.strided and id(parameter) in sparse:
            said = "got a dense gradient, though sparse=True", "sparse=False, or no use of the whole table"
        elif gradient.layout is torch.strided and not bool(gradient.any()):
            said = (
                "got a gradient of zeros",
                "a mask that leaves something, if one hides all that it computes",
            )
        else:
            continue
        found.setdefault(said, []).append(name)
    for (why, option), names in found.items():
        case.skipped("gradients", f"{', '.join(names)} {why}", option)
    case.tried(
        "gradients",
        "nothing",
        "; ".join(f"{len(held)} {why}" for (why, _), held in found.items()) or "nothing found",
    )


#: experiments of earlier versions, and what to do instead
_GONE = {
    "empty-row": "give a batch with such a sample; 'nan-under-mask' says where its NaN is made",
    "sample-coupling": "write documents={key: torch.arange(len(batch[key]))}: each sample is a document",
    "silent-hook": "count the calls of the hook",
    "stale-rows": "the optimizer warns of them while it trains",
    **dict.fromkeys(
        ("recorded-step", "unused-parameter", "zero-gradient", "densified-gradient"), "write 'gradients'"
    ),
}

#: in this order
EXPERIMENTS: dict[str, Callable[[Examination], None]] = {
    "padding-leak": padding_leak, "nan-under-mask": nan_under_mask, "padding-length": padding_length,
    "denominator": denominator, "order": order, "document-leak": document_leak,
    "document-alone": document_alone, "future-leak": future_leak,
    "gradients": _gradients,
}  # fmt: skip
_OF_DOCUMENTS = {"document-leak", "document-alone"}
#: those for which the rows of a batch are samples
_OF_SAMPLES = {"padding-length", "denominator", "order"}


def examine(
    step: Callable[[Any], Any],
    batch: Any,
    *,
    padding: Mapping[Any, Any] | None = None,
    documents: Any = None,
    causal: bool = False,
    model: nn.Module | None = None,
    experiments: Iterable[str] | None = None,
    quick: bool = False,
) -> Report:
    """Find the lines of a program where padding influences the loss or gradients, and related mistakes.

    The step runs several times from one state: with different values in the padding, with one more column of it, with a
    sample alone and without its padding, with its samples in another order. Loss and gradients must not change; if they
    do, the report names the first line where real entries depend on padding. Parameters, gradients, buffers, and the
    states of optimizers and random number generators are restored. ``torch.compile`` is off inside.

    Args:
        step: function of the batch that returns the scalar loss (or an object with a ``loss``), or that calls
            ``backward`` itself.
        batch: dict or other mapping, tuple, list, dataclass or tensor.
        padding: for each key of the batch (position in a tuple) a Boolean mask, True where entries are real, of the
            leading dimensions of the tensor; or the key of such a mask or lengths in the batch (``"~mask"`` if its
            True means padding); or the id of padding. The padding of other keys is recognised: by what they hold where
            a mask or lengths of the batch say padding, by -100 and NaN, and by the tables and modules that read them.
        documents: for packed batches, the document of each token: the key of the batch with an id for each token
            (``"seq_idx"``), with restarting positions (``"position_ids"``) or with bounds (``"cu_seqlens"``), or
            ``{key: integers of the shape of its tokens}``. By default it is recognised by such names. For three
            documents the labels of the others are ignored and their inputs rewritten, and the loss is compared with
            that of the document alone.
        causal: whether later positions must not reach earlier ones: for three positions the labels after them are
            ignored, and the inputs after them rewritten.
        model: module whose parameters and layers are named; by default those that the step calls.
        experiments: names of experiments; by default all but ``denominator``, ``future-leak`` only if ``causal``.
            ``nan-under-mask`` by name reports every path that a NaN could take, not only those of NaN in this batch.
        quick: run only the experiments ``padding-leak`` and ``document-leak``.

    Returns:
        the report; ``report.verdict`` is ``"found"``, ``"incomplete"`` or ``"ok"``, and the report is true only if it
        is ``"ok"``: all that was recognised or asked for was examined, and nothing was found.

    Raises:
        ExaminationError: the step does not depend on the batch, is not deterministic, or returns no scalar; a mask
            does not fit; an experiment is unknown; parameters are sharded, or several ranks run.

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
    chosen = _chosen(experiments, quick=quick, causal=causal)
    asked = frozenset() if experiments is None else frozenset(chosen)
    case = Examination(StepRunner(step, batch, model), asked=asked)
    _prepare(case, padding, documents)
    _run(case, chosen)
    case.report.inventory = case.inventory(examined=case.examined)
    return case.report


def _prepare(case: Examination, padding: Mapping[Any, Any] | None, documents: Any) -> None:
    """Find padding and documents, and run the step as it is, twice."""
    runner = case.runner
    case.documents = documents_of(runner.batch, documents)
    document = None if case.documents is None else case.documents.key
    roles = Roles(runner.batch, only_proven=padding is not None, documents=document)
    if roles.turned and padding is None:
        runner.turn(roles.turned)
        roles = Roles(runner.batch, documents=document)
    case.paddings = with_given(roles.paddings, runner.batch, padding)
    use = ObservedUse(runner.batch, runner.modules())
    with module_calls(use.enter, use.leave):
        outcome = runner.run(use, after=Outcome.cloned)
    if not use.reads_batch:
        raise ExaminationError(
            "step: it does not depend on the batch: no operation reads a tensor of it; use the argument of the "
            "step, `def step(batch): return loss_of(model(batch['x']))`"
        )
    known = {found.key for found in case.paddings}
    turned = use.turned(runner.batch, known | set(padding or ())) if case.documents is None else None
    if turned:
        runner.turn(turned)
        roles = Roles(runner.batch, only_proven=padding is not None)
        case.paddings = with_given(roles.paddings, runner.batch, padding)
    case.paddings += use.paddings(runner.batch, {found.key for found in case.paddings} | set(padding or ()))
    case.use = use
    case.inventory = functools.partial(inventory_of, roles, case.paddings, use, case.documents)
    case.base["first"], case.gives_nan = outcome, outcome.has_nan()


def _run(case: Examination, chosen: list[str]) -> None:
    samples = ragged(case.runner.batch)
    if samples:
        case.note(
            "padding",
            f"{', '.join(map(repr, samples))}: concatenated samples of different lengths have no padding that could "
            "leak; their values, columns and samples are not changed",
        )
    modules = [module for root in case.runner.roots for module in root.modules()]
    if any(type(module).__name__ == "OptimizedModule" for module in modules):
        case.note("torch.compile", "is off during the examination: the program runs uncompiled")
    for name in _possible(case, chosen, none=not samples):
        if not case.is_repeated and name != "padding-leak":
            case.runner.run(Guarded(), after=case.repeat)
            _check_repeats(case)
        EXPERIMENTS[name](case)
        _check_repeats(case)


def _possible(case: Examination, chosen: list[str], *, none: bool) -> list[str]:
    """The experiments that the batch allows; what was asked for and is not among them is skipped."""
    left_out = set[str]()
    if not case.paddings and "padding-leak" in chosen:
        left_out, why = {"padding-leak"}, "no padding was recognised in the batch"
        if case.asked:
            case.skipped("padding-leak", why, SAYS_PADDING)
        if none and case.documents is None:
            case.note("padding", f"{why}; {SAYS_PADDING} marks it")
    if case.documents is not None:  # another column would belong to a document; rows may be tokens
        left_out = left_out | (_OF_SAMPLES if case.documents.ids.ndim == 1 else {"padding-length"})
    else:
        left_out = left_out | _OF_DOCUMENTS
        for name in case.asked & _OF_DOCUMENTS:
            why = "no documents were recognised in the batch"
            case.skipped(name, why, "documents='seq_idx', the key of their ids")
    chosen = [name for name in chosen if name not in left_out]
    return chosen if chosen or case.asked else ["order"]  # quick, where nothing is padded


def _chosen(experiments: Iterable[str] | None, *, quick: bool, causal: bool) -> list[str]:
    if experiments is None:
        experiments = ("padding-leak", "document-leak") if quick else EXPERIMENTS.keys() - {"future-leak"}
    named = [experiments] if isinstance(experiments, str) else experiments
    wanted = set(named)
    for name in sorted(wanted - EXPERIMENTS.keys()):
        known, instead = ", ".join(EXPERIMENTS), f"; {_GONE[name]}" if name in _GONE else ""
        raise ExaminationError(f"experiments: {name!r} is none of {known}{instead}")
    return [name for name in EXPERIMENTS if name in wanted or (causal and name == "future-leak")]


def _check_repeats(case: Examination) -> None:
    """ExaminationError if two runs from one state differ."""
    if case.differs:
        entry = first_difference(log(case), log(case), where_real([]))
        where = "" if entry is None else f", first in {entry.operation}"
        if entry is not None and entry.place is not None:
            where += f" at {entry.place.file}:{entry.place.line}: {entry.place.code}"
        raise ExaminationError(
            f"step: it is not deterministic: {case.differs[0]} differs between two runs from one state{where}; "
            f"draw random numbers with torch, numpy.random or random, or give the step its numbers in the batch"
        )
