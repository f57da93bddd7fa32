"""The examination of a step: its experiments one after the other."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.doctor.batches import Presented, fields, ragged, tensor_of
from maskgrad.doctor.case import Examination
from maskgrad.doctor.inferred import ObservedUse
from maskgrad.doctor.influence import document_alone, document_leak, future_leak
from maskgrad.doctor.leaks import nan_under_mask, padding_leak
from maskgrad.doctor.modes import Guarded, module_calls
from maskgrad.doctor.operations import tensors_in
from maskgrad.doctor.packed import WEIGHT, documents_of, shapes_of_positions
from maskgrad.doctor.padding import SAYS_PADDING, with_given
from maskgrad.doctor.report import Report, inventory_of
from maskgrad.doctor.reshaped import batch_bits, check_repeats, denominator, order, padding_length
from maskgrad.doctor.roles import Roles
from maskgrad.doctor.runner import Outcome, StepRunner, names_of
from maskgrad.errors import ExaminationError

__all__ = ["EXPERIMENTS", "examine", "examine_outputs"]


#: in this order; maskgrad.simulated_ranks adds its own
EXPERIMENTS: dict[str, Callable[[Examination], None]] = {
    "padding-leak": padding_leak, "nan-under-mask": nan_under_mask, "padding-length": padding_length,
    "denominator": denominator, "order": order, "document-leak": document_leak,
    "document-alone": document_alone, "future-leak": future_leak, "batch-bits": batch_bits,
}  # fmt: skip
_OF_DOCUMENTS = {"document-leak", "document-alone"}
#: those for which the rows of a batch are samples
_OF_SAMPLES = {"padding-length", "denominator", "order", "batch-bits"}


def examine(
    step: Callable[[Any], Any], batch: Any, *, padding: Mapping[Any, Any] | None = None,
    documents: Any = None, causal: bool = False, model: nn.Module | None = None,
    experiments: Iterable[str] | None = None, quick: bool = False, ranks: int | None = None,
) -> Report:  # fmt: skip
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
        experiments: names; by default all but ``denominator``, ``batch-bits``, and ``future-leak`` unless ``causal``.
            ``nan-under-mask`` by name reports every path that a NaN could take, not only those of NaN in this batch.
        quick: run only the experiments ``padding-leak`` and ``document-leak``.
        ranks: also divide the samples among so many simulated ranks, and compare the average of their gradients, as
            DistributedDataParallel takes it, with that of one rank: the page "Will four GPUs give the same gradient?".

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
    world: Any = contextlib.nullcontext()
    if ranks is not None:  # its package is built on this one
        world = importlib.import_module("maskgrad.simulated_ranks").world_of_one(step)
    chosen = _chosen(experiments, quick=quick, causal=causal, ranks=ranks)
    asked = frozenset() if experiments is None else frozenset(chosen)
    with world:
        case = Examination(StepRunner(step, batch, model), asked=asked, ranks=ranks or 1)
        _prepare(case, padding, documents)
        _run(case, chosen)
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
    use = ObservedUse(runner.batch, names_of(runner.roots))
    with module_calls(use.enter, use.leave):
        outcome, case.gives_nan = runner.run(use, after=lambda made: (made.cloned(), made.has_nan()))
    if not use.reads_batch:
        raise ExaminationError(
            "step: it does not depend on the batch: no operation reads a tensor of it; use the argument of the "
            "step, `def step(batch): return loss_of(model(batch['x']))`"
        )
    known = {found.key for found in case.paddings}
    first = use.turned(runner.batch, known | set(padding or ())) if case.documents is None else None
    if first:
        runner.turn(first)
        roles = Roles(runner.batch, only_proven=padding is not None)
        case.paddings = with_given(roles.paddings, runner.batch, padding)
    case.paddings += use.paddings(runner.batch, {found.key for found in case.paddings} | set(padding or ()))
    case.use = use
    case.report.inventory = inventory_of(roles, case.paddings, use, case.documents, runner.presented.turned)
    case.base["first"] = outcome


def _run(case: Examination, chosen: list[str]) -> None:
    samples = ragged(case.runner.batch)
    if samples:
        why = (
            "concatenated samples of different lengths have no padding that could leak; they are not changed"
        )
        case.report.note("padding", f"{', '.join(map(repr, samples))}: {why}")
    modules = [module for root in case.runner.roots for module in root.modules()]
    if any(type(module).__name__ == "OptimizedModule" for module in modules):
        case.report.note("torch.compile", "is off during the examination: the program runs uncompiled")
    for name in _possible(case, chosen, none=not samples):
        if case.differs is None and name != "padding-leak":
            case.runner.run(Guarded(), after=case.repeat)
            check_repeats(case)
        EXPERIMENTS[name](case)
        check_repeats(case)


def _possible(case: Examination, chosen: list[str], *, none: bool) -> list[str]:
    """The experiments that the batch allows; what was asked for and is not among them is skipped."""
    left_out = set[str]()
    if not case.paddings and "padding-leak" in chosen:
        left_out, why = {"padding-leak"}, "no padding was recognised in the batch"
        if case.asked:
            case.report.skip("padding-leak", why, SAYS_PADDING)
        if none and case.documents is None:
            case.report.note("padding", f"{why}; {SAYS_PADDING} marks it")
    if case.documents is not None:  # another column would belong to a document; rows may be tokens
        left_out = left_out | (_OF_SAMPLES if case.documents.ids.ndim == 1 else {"padding-length"})
    else:
        left_out = left_out | _OF_DOCUMENTS
        for name in case.asked & _OF_DOCUMENTS:
            why = "no documents were recognised in the batch"
            case.report.skip(name, why, "documents='seq_idx', the key of their ids")
    chosen = [name for name in chosen if name not in left_out]
    return chosen if chosen or case.asked else ["order"]  # quick, where nothing is padded


def _chosen(names: Iterable[str] | None, *, quick: bool, causal: bool, ranks: int | None) -> list[str]:
    if ranks is not None and (type(ranks) is not int or ranks < 2):
        raise ExaminationError(f"ranks: expected 2 ranks or more, found {ranks!r}; write ranks=4")
    leaks = {"padding-leak", "document-leak"}
    usual = leaks if quick else EXPERIMENTS.keys() - {"future-leak", "denominator", "batch-bits", "ranks"}
    wanted = set(usual if names is None else [names] if isinstance(names, str) else names)
    if "ranks" in wanted and ranks is None:
        raise ExaminationError("experiments: 'ranks' needs their number; add ranks=4")
    for name in sorted(wanted - EXPERIMENTS.keys()):
        raise ExaminationError(f"experiments: {name!r} is none of {', '.join(EXPERIMENTS)}")
    wanted |= {name for name, added in {"future-leak": causal, "ranks": ranks}.items() if added}
    return [name for name in EXPERIMENTS if name in wanted]


#: how the weight of each position lies on an output: by position, flat, without the last one, time first
_FORMS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda weight: weight, lambda weight: weight.squeeze(0), lambda weight: weight.flatten(),
    lambda weight: weight[:, :-1], lambda weight: weight[:, :-1].flatten(), lambda weight: weight[:-1],
    lambda weight: weight[:-1].flatten(), lambda weight: weight.t(),
)  # fmt: skip


def examine_outputs(
    module: nn.Module, call: inspect.BoundArguments, documents: Any = None, *, causal: bool = False
) -> Report | None:
    """Documents and the future, in a call of a model; None if the call packs no documents and is not to be causal.

    A weighted sum of its outputs stands for the loss: one that the model returns counts all documents.
    """
    arguments = dict(call.arguments)
    kind = "document-leak"
    try:
        plain = fields(Presented(arguments).batch)
        of_another = isinstance(documents, str) and documents not in plain  # batch
        packed = documents_of(plain, None if of_another else documents)
        if packed is None and not causal:
            return None
        kind = "document-leak" if packed is not None else "future-leak"
        shapes = [tuple(packed.ids.shape)] if packed is not None else shapes_of_positions(plain)
        shape, place, form = _output_by_token(module, call, shapes)

        def step(batch: dict[str, Any]) -> Tensor:
            rest = {key: held for key, held in batch.items() if key != WEIGHT}
            return _weighed(_outputs(module, call, rest)[place], form(batch[WEIGHT]))

        tokens = [key for key, held in plain.items() if packed and packed.of(tensor_of(held)) is not None]
        given = None if packed is None else {tokens[0]: packed.ids}
        kinds = [] if packed is None else ["document-leak", "document-alone"]
        options: dict[str, Any] = {"padding": {}, "documents": given, "causal": causal, "model": module}
        report = examine(step, {**arguments, WEIGHT: torch.ones(shape)}, experiments=kinds, **options)
        report.findings = [replace(found, message=_of_outputs(found.message)) for found in report.findings]
        report.experiments = [replace(each, result=_of_outputs(each.result)) for each in report.experiments]
        report.inventory = [part for part in report.inventory if part.name != WEIGHT]
        report.note(kind, f"the outputs of {type(module).__name__} were examined, but no later computation")
    except Exception as error:  # the program goes on as it would without us
        why = str(error) if isinstance(error, ExaminationError) else f"the model fails: {error!r}"
        report = Report()
        report.skip(kind, why)
    return report


def _output_by_token(
    module: nn.Module, call: inspect.BoundArguments, shapes: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], int, Callable[[Tensor], Tensor]]:
    """The shape of the positions, the output that has something for each of them, and how they lie on it."""
    # this is decided once, by the call as it is: later there may be as many positions as classes
    found: list[tuple[int, ...]] = []

    def step(batch: dict[str, Any]) -> Tensor:
        outputs = _outputs(module, call, batch)
        found[:] = [tuple(output.shape) for output in outputs]
        return torch.stack([output.double().mean() for output in outputs]).sum()

    StepRunner(step, dict(call.arguments), module).run(Guarded(), after=Outcome.has_nan)
    for form, shape in itertools.product(_FORMS, shapes):
        if len(shape) > 1 or form is _FORMS[0]:
            weight = form(torch.ones(shape))
            for place, size in enumerate(found):
                by_token = weight.ndim > 1 or len(shape) == 1 or len(size) == 2
                if size[: weight.ndim] == tuple(weight.shape) and by_token:
                    return shape, place, form
    raise ExaminationError(
        "the model returns no output for each token; examine the step, from the batch to the loss, with "
        "mg.doctor.examine(step, batch)"
    )


def _outputs(module: nn.Module, call: inspect.BoundArguments, arguments: dict[str, Any]) -> list[Tensor]:
    again = inspect.BoundArguments(call.signature, arguments)
    returned = module(*again.args, **again.kwargs)
    outputs = tensors_in(list(returned.values()) if isinstance(returned, Mapping) else returned)
    return [output for output in outputs if output.requires_grad and output.is_floating_point()]


def _of_outputs(words: str) -> str:
    return words.replace("the loss is", "a weighted sum of the outputs is")


def _weighed(output: Tensor, weight: Tensor) -> Tensor:
    """A sum of an output; features are weighed, too: their sum may be the same for all tokens, after a LayerNorm."""
    weight = weight.to(output.device)
    features = output.flatten(weight.ndim) if output.ndim > weight.ndim else output.unsqueeze(-1)
    weights = torch.arange(1, features.shape[-1] + 1, device=output.device).cos().to(output.dtype)
    return ((features * weights).sum(-1) * weight).sum()
