"""The experiment in which one sample gets other contents."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.doctor.case import Examination
from maskgrad.doctor.findings import Finding
from maskgrad.doctor.operations import expanded
from maskgrad.doctor.packed import is_structure
from maskgrad.doctor.recorder import Event, Recorder
from maskgrad.doctor.variants import other_contents

__all__ = ["sample_coupling"]

_NORMS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm", "batch_norm")
_STATISTICS = ("mean", "sum", "var", "std", "var_mean", "std_mean", "amax", "amin", "max", "min", "logsumexp", "median",
               "linalg_vector_norm", "norm", "argmax", "prod", "cumsum", "topk", "sort")  # fmt: skip
_MASKS = ("mask", "length", "lens", "position", "label", "target")


def sample_coupling(case: Examination) -> None:
    """Other contents in one sample: no other sample may be computed differently."""
    inside, count = fields(case.runner.batch), case.count
    others, words = torch.arange(count) != count - 1, f"sample {count - 1}"
    recorder = Recorder([others], case.runner.modules(), forward_only=True)
    if count < 2 or not _rewrite(case, recorder, inside, others):
        return
    case.runner.run(recorder)
    fault = next((event for event in recorder.events if _is_fault(case, event, count)), None)
    if fault is not None:
        message = (
            f"{fault.operation} mixes samples: with changed contents of {words}, {fault.share:.0%} of the entries of "
            f"other samples change here"
        )
        case.report.add([Finding.at(fault, "sample-coupling", message, affected={"share": fault.share})])
    result = "no other sample changes" if fault is None else "other samples change"
    case.tried("sample-coupling", f"changed contents of {words}", result)


def _rewrite(case: Examination, recorder: Recorder, inside: dict[Key, Any], others: Tensor) -> bool:
    """Other contents for what is not a mask, a length or a label; whether there was anything."""
    paddings = {padding.key: padding for padding in case.paddings}
    masks = {name for padding in case.paddings for name in padding.mask_values}
    done = False
    for key, field in inside.items():
        tensor = tensor_of(field).detach()
        if key in masks or tensor.dtype == torch.bool or tensor.layout is not torch.strided:
            continue
        if is_structure(key) or any(word in str(key).lower() for word in _MASKS):
            continue
        if tensor.ndim < max(2, others.ndim) or tensor.shape[: others.ndim] != others.shape:
            continue
        real = expanded(others.to(tensor.device), tensor.shape)
        other = other_contents(tensor, real, "numbers")
        if other is None:
            continue
        if key in paddings:
            # padding stays as it is: what it does is asked elsewhere
            other = torch.where(paddings[key].entries(tensor), other, tensor)
        recorder.set_twin(tensor, other, sentinel=not tensor.is_floating_point())
        recorder.validity.set(tensor, real)
        done = True
    return done


def _is_fault(case: Examination, event: Event, rows: int) -> bool:
    """Statistics over the batch and a matrix of all pairs are meant, and noted; everything else is a fault."""
    note = ""
    if not event.mixes:
        return False
    if event.operation in _NORMS:
        note = f"{event.module or event.operation}: BatchNorm takes statistics over the samples of a batch"
    elif event.operation in ("_pack_padded_sequence", "_pad_packed_sequence"):
        return False  # they interleave the samples, and mix none
    elif rows not in event.shape:
        # a single number for the whole batch is the loss itself
        if event.operation in _STATISTICS and any(size != 1 for size in event.shape):
            note = f"{event.operation} takes a statistic over the samples of a batch"
    elif event.shape.count(rows) > 1 and len(event.shape) == 2:
        note = f"{event.operation} compares all samples of a batch with each other"
    elif event.operation not in _STATISTICS:
        return True
    else:  # a statistic whose result still has an axis of the rows, such as a cumulative sum along them
        return event.operation in ("cumsum", "sort", "topk") and any(rows in shape for shape in event.inputs)
    if note:
        case.note("sample-coupling", note, event.place)
    return False
