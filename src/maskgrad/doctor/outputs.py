"""Who may influence whom inside a model that a program calls: its outputs by token stand for the loss."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.doctor.batches import fields, tensor_of
from maskgrad.doctor.examination import examine
from maskgrad.doctor.findings import Note
from maskgrad.doctor.operations import tensors_in
from maskgrad.doctor.packed import Documents, documents_of, positions_of
from maskgrad.doctor.report import Report
from maskgrad.errors import ExaminationError

__all__ = ["examine_outputs"]

#: the weight of each token among the arguments of the model
_WEIGHT = "weight of the doctor"


def examine_outputs(
    module: nn.Module, call: inspect.BoundArguments, documents: Any = None, *, causal: bool = False
) -> Report | None:
    """Documents and the future, in a call of a model; None if the call packs no documents and is not to be causal.

    A sum of its outputs, in which tokens are weighed, stands for the loss. A loss that the model returns is not read:
    it counts all documents, whatever the weights.
    """
    arguments = dict(call.arguments)
    try:
        if isinstance(documents, str) and documents not in fields(arguments):
            documents = None  # the key of another batch
        packed = documents_of(arguments, documents)
        tokens = packed or (positions_of(arguments) if causal else None)
        if tokens is None:
            return None

        def step(batch: dict[str, Any]) -> Tensor:
            given = dict(batch)
            weight = given.pop(_WEIGHT)
            again = inspect.BoundArguments(call.signature, given)
            return _weighed(module(*again.args, **again.kwargs), weight)

        batch = {**arguments, _WEIGHT: torch.ones(tokens.ids.shape, device=tokens.ids.device)}
        given = None if packed is None else {_key(arguments, packed): packed.ids}
        kinds = ["document-leak", "document-alone"] if packed is not None else []
        options: dict[str, Any] = {"padding": {}, "documents": given, "causal": causal, "model": module}
        report = examine(step, batch, experiments=kinds, **options)
        report.findings = [replace(found, message=_of_outputs(found.message)) for found in report.findings]
        report.experiments = [
            replace(tried, result=_of_outputs(tried.result)) for tried in report.experiments
        ]
        about = f"the outputs of {type(module).__name__} were examined, but no later computation"
        report.note(Note("document-leak" if packed is not None else "future-leak", about))
        if packed is not None:
            report.padding["documents"] = f"{packed.count}, by {packed.source}"
        return report
    except Exception as error:  # the program goes on as it would without us
        why = str(error) if isinstance(error, ExaminationError) else f"the model fails: {error!r}"
        report = Report()
        report.note(Note("document-leak" if not causal else "future-leak", f"skipped: {why}"))
        return report


def _key(arguments: dict[str, Any], documents: Documents) -> Any:
    return next(key for key, field in fields(arguments).items() if documents.of(tensor_of(field)) is not None)


def _of_outputs(words: str) -> str:
    return words.replace("the loss is", "a weighted sum of the outputs is")


def _weighed(returned: Any, weight: Tensor) -> Tensor:
    """A sum of the first output that has something for each token."""
    for output in tensors_in(list(returned.values()) if isinstance(returned, Mapping) else returned):
        for form in (weight, weight.squeeze(0)):
            if (
                output.requires_grad
                and output.is_floating_point()
                and output.shape[: form.ndim] == form.shape
            ):
                # features are weighed too: their sum alone may be the same for all tokens, after a LayerNorm
                features = output.flatten(form.ndim) if output.ndim > form.ndim else output.unsqueeze(-1)
                weights = torch.arange(1, features.shape[-1] + 1, device=output.device).cos().to(output.dtype)
                return ((features * weights).sum(-1) * form).sum()
    raise ExaminationError(
        "the model returns no output for each token; examine the step, from the batch to the loss, with "
        "mg.doctor.examine(step, batch)"
    )
