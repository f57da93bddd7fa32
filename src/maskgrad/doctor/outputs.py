"""Who may influence whom inside a model that a program calls: its outputs by token stand for the loss."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.doctor.batches import Presented, fields, tensor_of
from maskgrad.doctor.examination import examine
from maskgrad.doctor.findings import Note
from maskgrad.doctor.inventory import Skipped
from maskgrad.doctor.modes import Guarded
from maskgrad.doctor.operations import tensors_in
from maskgrad.doctor.packed import WEIGHT, documents_of, shapes_of_positions
from maskgrad.doctor.report import Report
from maskgrad.doctor.runner import Outcome, StepRunner
from maskgrad.errors import ExaminationError

__all__ = ["examine_outputs"]

#: how the weight of each position lies on an output: by position, flat, without the last one, time first
_FORMS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda weight: weight,
    lambda weight: weight.squeeze(0),
    lambda weight: weight.flatten(),
    lambda weight: weight[:, :-1],
    lambda weight: weight[:, :-1].flatten(),
    lambda weight: weight[:-1],
    lambda weight: weight[:-1].flatten(),
    lambda weight: weight.t(),
)


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
        shape, place, form = _chosen(module, call, shapes)

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
        about = f"the outputs of {type(module).__name__} were examined, but no later computation"
        report.note(Note(kind, about))
    except Exception as error:  # the program goes on as it would without us
        why = str(error) if isinstance(error, ExaminationError) else f"the model fails: {error!r}"
        report = Report()
        report.skip(Skipped(kind, why))
    return report


def _chosen(
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
