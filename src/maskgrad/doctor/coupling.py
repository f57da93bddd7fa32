"""The experiment in which one sample, or one of the sequences packed in a row, gets other contents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.doctor.experiments import Examination
from maskgrad.doctor.findings import Finding
from maskgrad.doctor.garbage import other_contents
from maskgrad.doctor.remedies import remedy_for
from maskgrad.doctor.trail import Event, Recorder
from maskgrad.doctor.variants import rows_of

__all__ = ["sample_coupling"]

_NORMS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm", "batch_norm")
_STATISTICS = ("mean", "sum", "var", "std", "var_mean", "std_mean", "amax", "amin", "max", "min", "logsumexp", "median",
               "linalg_vector_norm", "norm", "argmax", "prod", "cumsum", "topk", "sort")  # fmt: skip
#: what says to which of several sequences in one row a token belongs
_SEGMENTS = ("segment", "document_id", "doc_id", "seq_idx", "sequence_id", "sample_id")
_MASKS = ("mask", "length", "lens", "position", "label", "target")


@dataclass(frozen=True)
class _Part:
    """A part of the batch that is given other contents."""

    words: str
    #: what stays real: of shape (B,), or of (B, T) for one of several sequences in a row
    others: Tensor


def sample_coupling(case: Examination) -> None:
    """Other contents in one sample: no other sample may be computed differently."""
    inside = fields(case.trial.batch)
    count = rows_of(case.trial.batch, case.paddings)
    parts = list(_segments(inside))
    if count > 1:
        parts.append(_Part(f"sample {count - 1}", torch.arange(count) != count - 1))
    for part in parts:
        recorder = Recorder([part.others], case.trial.modules())
        if _rewrite(case, recorder, inside, part):
            events: list[Event] = case.trial.run(recorder, after=lambda _, recorder=recorder: recorder.events)
            _judge(case, part, [event for event in events if event.mixes and not event.backward])


def _segments(inside: dict[Key, Any]) -> list[_Part]:
    for key, field in inside.items():
        tensor = tensor_of(field)
        if isinstance(key, str) and any(word in key.lower() for word in _SEGMENTS) and tensor.ndim == 2:
            ids = tensor.unique()
            ids = ids[ids >= 0]
            if len(ids) > 1:
                return [_Part(f"the sequence {int(ids[0])} of {key!r}", tensor != ids[0])]
    return []


def _rewrite(case: Examination, recorder: Recorder, inside: dict[Key, Any], part: _Part) -> bool:
    """Other contents for what is not a mask, a length or a label; whether there was anything."""
    masks = {padding.mask_key for padding in case.paddings}
    done = False
    for key, field in inside.items():
        tensor = tensor_of(field).detach()
        if key in masks or tensor.dtype == torch.bool or tensor.layout is not torch.strided:
            continue
        if isinstance(key, str) and any(word in key.lower() for word in (*_MASKS, *_SEGMENTS)):
            continue
        if tensor.ndim < max(2, part.others.ndim) or tensor.shape[: part.others.ndim] != part.others.shape:
            continue
        others = part.others.to(tensor.device)
        real = others.reshape(*others.shape, *(1,) * (tensor.ndim - others.ndim)).expand(tensor.shape)
        other = other_contents(tensor, real, "numbers")
        if other is None:
            continue
        known = next((padding for padding in case.paddings if padding.key == key), None)
        if known is not None:
            # padding stays as it is: what it does is asked elsewhere
            other = torch.where(known.entries(tensor), other, tensor)
        recorder.set_twin(tensor, other, marker=not tensor.is_floating_point())
        recorder.begin(tensor, real)
        done = True
    return done


def _judge(case: Examination, part: _Part, events: list[Event]) -> None:
    """Statistics over the batch and a matrix of all pairs are meant; everything else is a fault."""
    rows = part.others.shape[0]
    faults = 0
    for event in events:
        if event.operation in _NORMS:
            case.note(
                "sample-coupling",
                f"{event.module or event.operation}: BatchNorm takes statistics over the samples of a batch",
                event.place,
            )
            continue
        if event.operation in ("_pack_padded_sequence", "_pad_packed_sequence"):
            continue  # they interleave the samples, and mix none
        if part.others.ndim == 1:
            if rows not in event.shape:
                if event.operation in _STATISTICS and len(event.shape) and not _counts(event):
                    case.note(
                        "sample-coupling",
                        f"{event.operation} takes a statistic over the samples of a batch",
                        event.place,
                    )
                continue
            if event.shape.count(rows) > 1 and len(event.shape) == 2:
                case.note(
                    "sample-coupling",
                    f"{event.operation} compares all samples of a batch with each other",
                    event.place,
                )
                continue
            if event.operation in _STATISTICS and not _over_rows(event, rows):
                continue
        elif event.shape[:2] != tuple(part.others.shape) and not _token_pairs(event, part.others):
            continue
        faults += 1
        case.report.add(
            [
                Finding.at(
                    event.place,
                    "sample-coupling",
                    f"{event.operation} mixes samples: with other contents in {part.words}, {event.share:.0%} of the "
                    f"entries of other samples change here",
                    remedy=remedy_for("sample-coupling", event),
                    module=event.module,
                    operation=event.operation,
                    affected={"share": event.share},
                )
            ]
        )
        break
    case.tried(
        "sample-coupling",
        f"other contents in {part.words}",
        "other samples change" if faults else "no other sample changes",
    )


def _counts(event: Event) -> bool:
    """A number for the whole batch: the loss itself."""
    return all(size == 1 for size in event.shape)


def _over_rows(event: Event, rows: int) -> bool:
    """A statistic whose result still has an axis of the rows, such as a cumulative sum along them."""
    return any(rows in shape for shape in event.inputs) and event.operation in ("cumsum", "sort", "topk")


def _token_pairs(event: Event, others: Tensor) -> bool:
    return event.shape.count(others.shape[1]) > 1
